// What is written down of a model that files are stored of, and what is told of it.

import { isText, isWeights, readManifest, storedNames } from "../package/manifest.js";

/**
 * @typedef {{url: string, manifest: string, used: string[], lastUsed: number}} Model
 *   manifest: its text; used: the names of files that were asked for; lastUsed: ms since 1970
 * @typedef {{name: string, bytes: number, stored: boolean}} StoredFile
 * @typedef {{url: string, name: string, bytes: number, files: StoredFile[], complete: boolean, lastUsed: number}}
 *   Listed
 *   bytes: that are stored of it, of started files too; files: texts, weights, and graphs that were used;
 *   complete: texts, weights and a graph are stored, so that it can be used without a network
 */

/** Behind the address of a model: its record of before an update that is not whole yet. */
export const OLD = "#old";

/**
 * The record that a text holds; null when it is none.
 * @param {string} text
 * @returns {Model | null}
 */
export function readRecord(text) {
  try {
    const model = JSON.parse(text);
    readManifest(model.manifest, "the stored manifest");
    return model;
  } catch {
    return null; // of another version, perhaps: the model is fetched again
  }
}

/**
 * @param {Model} model
 * @param {ReadonlyMap<string, number>} sizes  bytes of what is stored, by name
 * @returns {Listed}
 */
export function listed({ url, manifest: text, used, lastUsed }, sizes) {
  const manifest = readManifest(text, "the stored manifest");
  const files = [];
  const counted = new Map(); // by sha256: two names may be one file
  for (const [name, entry] of Object.entries(manifest.files)) {
    const { bytes, sha256 } = entry, names = storedNames(entry);
    const isStored = names.some((each) => sizes.get(each) === bytes);
    counted.set(sha256, isStored ? bytes : Math.max(...names.map((each) => sizes.get(`${each}.part`) ?? 0)));
    if (isText(manifest, name) || isWeights(name) || used.includes(name)) files.push({ name, bytes, stored: isStored });
  }
  const isGraph = (/** @type {string} */ name) => manifest.graphs.some((graph) => graph.file === name);
  const complete = files.every(({ stored }) => stored) && files.some(({ name }) => isGraph(name));
  const bytes = [...counted.values()].reduce((sum, each) => sum + each, 0);
  return { url, name: manifest.name, bytes, files, complete, lastUsed };
}
