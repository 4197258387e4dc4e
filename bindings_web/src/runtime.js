// Loads onnxruntime-web: the build with WebGPU, or the plain one, of which the inner module is kept.

/**
 * @typedef {any} WasmModule Emscripten's module of ONNX Runtime, with its C functions
 * @typedef {typeof import("onnxruntime-web")} Ort
 */

/**
 * @param {string} base URL of onnxruntime-web's dist folder, with a slash at its end
 * @returns {Promise<Ort>}
 */
export async function loadGpuRuntime(base) {
  // the build for browsers that can suspend WebAssembly is 10 MB smaller and needs no instrumented code
  const build = "Suspending" in WebAssembly ? "jspi" : "webgpu";
  const ort = await import(/* @vite-ignore */ `${base}ort.${build}.bundle.min.mjs`);
  ort.env.logLevel = "error";
  ort.env.wasm.numThreads = 1; // what is left on the CPU are sums of a few numbers
  ort.env.webgpu.powerPreference = "high-performance";
  return ort;
}

/** @typedef {{ort: Ort, module: () => WasmModule}} CpuRuntime module: there once a session was made */

/** A page has one, since ONNX Runtime cannot start twice. @type {Map<string, Promise<CpuRuntime>>} */
const started = new Map();

/**
 * The build for the CPU, and the module inside it: see host_steps.js. Its property `lastSession` is the handle of the
 * session that was made last.
 *
 * @param {string} base @param {number} threads 0: as many as ONNX Runtime takes; the first call decides
 * @returns {Promise<CpuRuntime>}
 */
export function loadCpuRuntime(base, threads) {
  const found = started.get(base) ?? startCpuRuntime(base, threads);
  started.set(base, found);
  found.catch(() => started.delete(base));
  return found;
}

/** @param {string} base @param {number} threads @returns {Promise<CpuRuntime>} */
async function startCpuRuntime(base, threads) {
  const ort = await import(/* @vite-ignore */ `${base}ort.wasm.min.mjs`);
  ort.env.logLevel = "error";
  ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? threads : 1;
  // ONNX Runtime imports this in place of its own loader, which it calls and whose result it keeps
  const key = `embedllm ${Math.random()}`;
  const loader = `import load from ${JSON.stringify(`${base}ort-wasm-simd-threaded.mjs`)};
    export default async (options) => {
      const module = await load(options);
      const create = module._OrtCreateSession;
      module._OrtCreateSession = async (...given) => (module.lastSession = await create(...given));
      return (globalThis[${JSON.stringify(key)}] = module);
    };`;
  const mjs = URL.createObjectURL(new Blob([loader], { type: "text/javascript" }));
  ort.env.wasm.wasmPaths = { mjs, wasm: `${base}ort-wasm-simd-threaded.wasm` };
  return { ort, module: () => /** @type {any} */ (globalThis)[key] };
}
