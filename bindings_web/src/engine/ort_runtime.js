// Loads onnxruntime-web: the build with WebGPU, or the plain one, of which the inner module is kept.

/**
 * @typedef {any} WasmModule Emscripten's module of ONNX Runtime, with its C functions
 * @typedef {typeof import("onnxruntime-web")} Ort
 */

let lost = 0; // how many times the GPU was

/**
 * @param {string} base URL of onnxruntime-web's dist folder, with a slash at its end
 * @returns {Promise<Ort>}
 */
export async function loadGpuRuntime(base) {
  // the build for browsers that can suspend WebAssembly is 10 MB smaller and needs no instrumented code
  const build = "Suspending" in WebAssembly ? "jspi" : "webgpu";
  const ort = await import(/* @vite-ignore */ `${base}ort.${build}.bundle.min.mjs${lost ? `#${lost}` : ""}`);
  ort.env.logLevel = "error";
  ort.env.wasm.numThreads = 1; // what is left on the CPU are sums of a few numbers
  ort.env.webgpu.powerPreference = "high-performance";
  return ort;
}

/** Lets the next load start again: ONNX Runtime has one GPU device for good, and it was lost. */
export function forgetGpuRuntime() {
  lost++;
}

/** @typedef {{ort: Ort, module: () => WasmModule}} CpuRuntime module: there once a session was made */

/** A page has one, since ONNX Runtime cannot start twice. @type {Map<string, Promise<CpuRuntime>>} */
const started = new Map();

/**
 * The build for the CPU, and the module inside it: see wasm_steps.js. Its property `lastSession` is the handle of the
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
  /** @type {WasmModule} */
  let module = null;
  const keep = (/** @type {WasmModule} */ made) => {
    const create = made._OrtCreateSession;
    made._OrtCreateSession = async (/** @type {any[]} */ ...given) => (made.lastSession = await create(...given));
    return (module = made);
  };
  const mjs = loaderAddress(`${base}ort-wasm-simd-threaded.mjs`, keep);
  ort.env.wasm.wasmPaths = { mjs, wasm: `${base}ort-wasm-simd-threaded.wasm` };
  return { ort, module: () => module };
}

/**
 * The address of what ONNX Runtime imports in place of its own loader, which it calls and whose result is kept.
 *
 * @param {string} loader @param {(made: WasmModule) => WasmModule} keep
 */
function loaderAddress(loader, keep) {
  Object.assign(globalThis, { [`embedllm ${loader}`]: keep });
  const { protocol, origin } = new URL(import.meta.url); // of a module out of a wheel a blob, which has nothing beside it
  if (protocol !== "blob:" && origin === globalThis.location?.origin) {
    const beside = new URL("./wasm_loader.js", import.meta.url);
    beside.search = new URLSearchParams({ loader }).toString(); // the same each time: pages are kept for offline use
    return beside.href;
  }
  // of another origin ONNX Runtime would make a copy, which has no address to find the rest by
  const source = `import load from ${JSON.stringify(loader)};
    export default async (options) => globalThis[${JSON.stringify(`embedllm ${loader}`)}](await load(options));`;
  return URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
}
