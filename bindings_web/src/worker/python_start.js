// Starts Pyodide with embedllm in it: from the snapshot of a start before this one, else from the beginning.

import { libraryUrl, loadBytes, loadLibrary } from "../libraries.js";
import { openSnapshot } from "./python_snapshot.js";

/** @import { Urls } from "../libraries.js" */

const ARCHIVES = /** @type {const} */ (["wheel", "markupsafe", "jinja2"]);
const PATHS = ARCHIVES.map((name) => `/lib/embedllm-${name}.whl`); // as they are: Python imports out of them

/**
 * Pyodide, whose modules of embedllm are imported.
 *
 * @param {Urls} urls
 * @param {Promise<unknown>} loading the model, which is stored before the snapshot is
 * @returns {Promise<any>}
 */
export async function startPython(urls, loading) {
  const archives = Promise.all(ARCHIVES.map((name) => loadBytes(name, urls)));
  const [{ loadPyodide }, snapshot] = await Promise.all([
    loadLibrary("pyodide", urls), openSnapshot(libraryUrl("pyodide", urls), archives),
  ]);
  const folder = new URL(".", libraryUrl("pyodide", urls));
  // Pyodide finds a folder on disk, of Node, by itself only
  const options = folder.protocol === "file:" ? {} : { indexURL: folder.href };
  const restored = snapshot?.found && (await restore(() => loadPyodide({ ...options, _loadSnapshot: snapshot.found })));
  if (restored) {
    write(restored, await archives); // for what is imported later: a snapshot has no files
    return restored;
  }
  const [python, bytes] = await Promise.all([loadPyodide({ ...options, _makeSnapshot: snapshot !== null }), archives]);
  write(python, bytes);
  python.runPython(`import sys; sys.path += ${JSON.stringify(PATHS)}`);
  python.pyimport("embedllm.web.preload").destroy();
  if (snapshot) keep(python, snapshot, loading);
  return python;
}

/** @param {() => Promise<any>} load */
async function restore(load) {
  try {
    return await load();
  } catch {
    return null; // of something else, or Pyodide refuses it
  }
}

/** @param {any} python @param {ArrayBuffer[]} archives */
function write(python, archives) {
  for (const [place, path] of PATHS.entries()) python.FS.writeFile(path, new Uint8Array(archives[place]));
}

/**
 * @param {any} python before any model
 * @param {import("./python_snapshot.js").Snapshot} snapshot
 * @param {Promise<unknown>} loading
 */
function keep(python, snapshot, loading) {
  let bytes;
  try {
    bytes = python.makeMemorySnapshot();
  } catch (error) {
    console.debug("embedllm: Python starts again at each visit, because", error);
    return;
  }
  loading.then(() => snapshot.keep(bytes)).catch(() => {}); // nothing is lost but time
}
