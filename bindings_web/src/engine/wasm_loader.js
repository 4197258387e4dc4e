// What ONNX Runtime imports in place of its own loader, where a policy allows no blob (an extension): see ort_runtime.js.

const loader = String(new URL(import.meta.url).searchParams.get("loader"));

/** @param {object} options @returns {Promise<import("./ort_runtime.js").WasmModule>} */
export default async function load(options) {
  const module = await (await import(/* webpackIgnore: true */ /* @vite-ignore */ loader)).default(options);
  return /** @type {any} */ (globalThis)[`embedllm ${loader}`](module);
}
