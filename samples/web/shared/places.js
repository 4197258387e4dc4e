// Where the samples find embedllm, the libraries of others and the demo model: all beside the page, as pack.py lays them.

/** @param {string} path */
const beside = (path) => new URL(`../${path}`, import.meta.url).href;

/** embedllm's modules */
export const LIBRARY = beside("embedllm/index.js");
export const BRIDGE = beside("embedllm/worker/load_model.js");

/** The model that comes with the page. */
export const DEMO = beside("models/demo/");

/** In place of the addresses at jsDelivr that the library would take: docs/web.md, "Host it yourself". */
export const URLS = {
  onnxruntime: beside("libraries/onnxruntime/"),
  tokenizers: beside("libraries/tokenizers/tokenizers.min.mjs"),
  jinja: beside("libraries/jinja/index.js"),
  hashes: beside("libraries/hashes/sha2.js"),
  probe: beside("probe/"),
  pyodide: beside("libraries/pyodide/pyodide.mjs"),
  wheel: beside("libraries/python/embedllm.whl"),
  jinja2: beside("libraries/python/jinja2.whl"),
  markupsafe: beside("libraries/python/markupsafe.whl"),
};

/** @returns {Promise<typeof import("../../../bindings_web/src/index.js")>} */
export const library = () => import(LIBRARY);
