// What ONNX Runtime imports in place of its own loader, where a policy allows no blob (an extension): see runtime.js.

const asked = new URL(import.meta.url).searchParams;

/** @param {object} options @returns {Promise<import("./runtime.js").WasmModule>} */
export default async function load(options) {
  const { keep } = /** @type {any} */ (globalThis)[String(asked.get("key"))];
  const loader = await import(/* @vite-ignore */ String(asked.get("loader")));
  return keep(await loader.default(options));
}
