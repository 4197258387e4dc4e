// Pyodide in Node, from local files, with the wheel for browsers in it and a model of one formula behind the bridge.

import { readFile } from "node:fs/promises";
import { dirname } from "node:path";
import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

import { ByteCodec, FormulaEngine } from "../support/formula.js";

const here = dirname(fileURLToPath(import.meta.url));

/** Where Pyodide is installed: EMBEDLLM_NODE_MODULES, or the npm package's own. */
export function pyodideFolder() {
  const modules = process.env.EMBEDLLM_NODE_MODULES;
  if (modules) return `${modules}/pyodide`;
  return dirname(createRequire(`${here}/../../../bindings_web/package.json`).resolve("pyodide/package.json"));
}

/**
 * A bridge whose models are formulas, and what a test changes of it.
 *
 * @param {{vocabulary: number, context: number, texts: Record<string, string>}} model
 */
export function formulaBridge({ vocabulary, context, texts }) {
  const bridge = {
    /** @type {FormulaEngine[]} */
    engines: [],
    /** @type {Error | null} what load() throws */
    failure: null,
    /** @type {unknown[]} */
    asked: [],
    hangs: false,
    async devices() {
      return [
        { name: "webgpu", backend: "made up 1", description: "a GPU", available: true, memory: 5 },
        { name: "wasm", backend: "made up 1", available: false, reason: "no", remedy: null },
      ];
    },
    /** @param {string} url @param {any} options */
    async load(url, { device, threads, context: limit = null, onProgress, signal, urls }) {
      bridge.asked.push({ url, device, threads, urls, context: limit });
      if (bridge.failure) throw bridge.failure;
      await onProgress?.({ file: "weights.safetensors", loaded: 5, total: 10, phase: "download" });
      if (bridge.hangs) {
        await new Promise((_, reject) => {
          const fail = () => reject(new DOMException("aborted", "AbortError"));
          if (signal.aborted) fail();
          signal.addEventListener("abort", fail);
        });
      }
      if (signal.aborted) throw new DOMException("aborted", "AbortError");
      const engine = new FormulaEngine(vocabulary, limit ?? context);
      bridge.engines.push(engine);
      const refused = [{ name: "webgpu", backend: "", description: "", available: false, reason: "not here" }];
      return { texts: new Map(Object.entries(texts)), refused, engine, tokenizer: new ByteCodec(), device: engine.device };
    },
  };
  return bridge;
}

/**
 * Pyodide with embedllm in it.
 *
 * @param {{archives: string[]}} options archives: wheels and zips that are unpacked into it
 * @param {object} bridge
 */
export async function startPyodide({ archives }, bridge) {
  const folder = pyodideFolder();
  const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
  const python = await loadPyodide({ indexURL: `${folder}/` });
  for (const archive of archives) {
    python.unpackArchive(new Uint8Array(await readFile(archive)), archive.endsWith("whl") ? "wheel" : "zip");
  }
  python.registerJsModule("embedllm_bridge", bridge);
  return python;
}
