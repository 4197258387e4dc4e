// Loads onnxruntime-web: the build with WebGPU or the plain one, and keeps the inner module of it.

/**
 * @typedef {any} WasmModule Emscripten's module of ONNX Runtime, with its C functions
 * @typedef {typeof import("onnxruntime-web")} Ort
 */

/** @typedef {{ort: Ort, module: () => WasmModule}} Runtime module: there once a session was made */

let lost = 0; // how many times the GPU was

/** A page has one of each build, since ONNX Runtime cannot start twice. @type {Map<string, Promise<Runtime>>} */
const started = new Map();

/**
 * The build with WebGPU. Its module's property `lastSession`, as the other's, is the handle of the session made last.
 *
 * @param {string} base URL of onnxruntime-web's dist folder, with a slash at its end
 * @returns {Promise<Runtime>}
 */
export function loadGpuRuntime(base) {
  // the build for browsers that can suspend WebAssembly is 10 MB smaller and needs no instrumented code
  const [build, loader] = "Suspending" in WebAssembly ? ["jspi", "jspi"] : ["webgpu", "asyncify"];
  return once(`${base}ort.${build}.min.mjs${lost ? `#${lost}` : ""}`, async (library) => {
    const runtime = await start(library, `${base}ort-wasm-simd-threaded.${loader}`);
    runtime.ort.env.wasm.numThreads = 1; // what is left on the CPU are sums of a few numbers
    runtime.ort.env.webgpu.powerPreference = "high-performance";
    return runtime;
  });
}

/** Lets the next load start again: ONNX Runtime has one GPU device for good, and it was lost. */
export function forgetGpuRuntime() {
  lost++;
}

/**
 * The build for the CPU.
 *
 * @param {string} base @param {number} threads 0: as many as ONNX Runtime takes; the first call decides
 * @returns {Promise<Runtime>}
 */
export function loadCpuRuntime(base, threads) {
  return once(`${base}ort.wasm.min.mjs`, async (library) => {
    const runtime = await start(library, `${base}ort-wasm-simd-threaded`);
    runtime.ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? threads : 1;
    return runtime;
  });
}

/** @param {string} library its address @param {(library: string) => Promise<Runtime>} make */
function once(library, make) {
  const found = started.get(library) ?? make(library);
  started.set(library, found);
  found.catch(() => started.delete(library));
  return found;
}

/**
 * The library, and the module inside it: see ort_calls.js.
 *
 * @param {string} library
 * @param {string} inner address of its WebAssembly and of the loader of that, less their endings
 * @returns {Promise<Runtime>}
 */
async function start(library, inner) {
  const ort = await import(/* webpackIgnore: true */ /* @vite-ignore */ library);
  ort.env.logLevel = "error";
  /** @type {WasmModule} */
  let module = null;
  const keep = (/** @type {WasmModule} */ made) => {
    const create = made._OrtCreateSession;
    made._OrtCreateSession = async (/** @type {any[]} */ ...given) => (made.lastSession = await create(...given));
    return (module = made);
  };
  ort.env.wasm.wasmPaths = { mjs: loaderAddress(`${inner}.mjs`, keep), wasm: `${inner}.wasm` };
  return { ort, module: () => module };
}

/**
 * The address of what ONNX Runtime imports in place of its own loader, which it calls and whose result is kept.
 *
 * @param {string} loader @param {(made: WasmModule) => WasmModule} keep
 */
function loaderAddress(loader, keep) {
  Object.assign(globalThis, { [`embedllm ${loader}`]: keep });
  if (!import.meta.url.startsWith("blob:")) { // as of a module out of a wheel, which has nothing beside it
    const beside = new URL("./wasm_loader.js?no-inline", import.meta.url); // else Vite makes it a data: URL
    if (beside.origin === globalThis.location?.origin) {
      beside.search = new URLSearchParams({ loader }).toString(); // the same each time: pages are kept for offline use
      return beside.href;
    }
  }
  // of another origin ONNX Runtime would make a copy, which has no address to find the rest by
  const source = `import load from ${JSON.stringify(loader)};
    export default async (options) => globalThis[${JSON.stringify(`embedllm ${loader}`)}](await load(options));`;
  return URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
}
