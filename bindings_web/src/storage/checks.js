// Whether stored files still are what was downloaded: a disk may damage them, and any script of the site write to them.

import { isWeights } from "../package/manifest.js";
import { digest } from "./stored_name.js";

/** @typedef {import("./opfs.js").Place} Place */

export const RECORD = "checks"; // of weights, by stored name: the file's date, and when it was hashed
const VALID_MS = 30 * 24 * 3600 * 1000;
const MOST_WHOLE = 1 << 26; // bytes that are in memory at once, for the browser's own SHA-256

/**
 * Whether a stored file of the right size can be used as it is.
 *
 * Texts and graphs are hashed each time. Of weights, which take longer, it is asked whether they have changed since they
 * were hashed, or that was 30 days ago; the latter not where only JavaScript can hash them, at 50 MB/s.
 * @param {File | Blob} file
 * @param {string} name  by which it is stored
 * @param {import("./download.js").Wanted} wanted
 * @param {Place} place
 */
export async function isRight(file, name, wanted, place) {
  if (!place.isDisk) return true;
  if (!isWeights(wanted.name)) return (await wholeHash(file).catch(() => "")) === wanted.sha256;
  const [date, hashed] = (await checksOf(place))[name] ?? [];
  return date === dateOf(file) && (isSlow(name, wanted) || Math.abs(Date.now() - hashed) < VALID_MS);
}

/** Whether only JavaScript can hash a file. @param {string} name @param {import("./download.js").Wanted} wanted */
export const isSlow = (name, { bytes, sha256 }) => name === sha256 && bytes > MOST_WHOLE;

/** @param {Blob} file */
export const wholeHash = async (file) => digest(new Uint8Array(await file.arrayBuffer()));

/** @param {Place} place @returns {Promise<Record<string, [number, number]>>} */
export async function checksOf(place) {
  try {
    return JSON.parse((await place.record(RECORD)) ?? "{}");
  } catch {
    return {}; // damaged: all are hashed again
  }
}

/** When a file was written; undefined where it is in memory. @param {File | Blob} file */
export const dateOf = (file) => /** @type {File} */ (file).lastModified;
