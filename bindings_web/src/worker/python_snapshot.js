// The memory of a Pyodide that has started, in this site's file system: a reload begins there.

import { openPlace } from "../storage/opfs.js";

/**
 * @typedef {{found: Promise<Uint8Array> | null, keep: (bytes: Uint8Array) => Promise<void>}} Snapshot found: rejects
 *   where it is damaged, or of other archives, another Pyodide or another browser
 */

const NAME = "snapshot"; // one a site: where something changes, it takes the place of the one before
const HASH_BYTES = 32;

/**
 * What this browser keeps; null where it stores nothing.
 *
 * @param {string} place of Pyodide
 * @param {Promise<ArrayBuffer[]>} archives what is in its memory
 * @returns {Promise<Snapshot | null>}
 */
export async function openSnapshot(place, archives) {
  if (!globalThis.navigator?.storage) return null; // Node, or a page without https:
  const { place: disk } = await openPlace("python");
  if (!disk.isDisk) return null;
  const about = new TextEncoder().encode(`${place} ${navigator.userAgent}`);
  /** @param {Uint8Array<ArrayBuffer>} bytes */
  const hash = async (bytes) => {
    const hashes = await Promise.all([about, bytes, ...(await archives)].map((each) => crypto.subtle.digest("SHA-256", each)));
    return crypto.subtle.digest("SHA-256", await new Blob(hashes).arrayBuffer());
  };
  const file = await disk.file(NAME).catch(() => null);
  return {
    found: file && checked(file, hash),
    async keep(bytes) {
      const whole = /** @type {Uint8Array<ArrayBuffer>} */ (bytes);
      const hashed = new Uint8Array(await hash(whole));
      const part = await disk.part(NAME); // throws where another tab writes one
      try {
        part.cut(0);
        for (const each of [hashed, whole]) part.append(each);
        await part.finish();
      } catch {
        part.cut(0); // no room: Python starts from the beginning
      } finally {
        part.close();
      }
    },
  };
}

/**
 * @param {Blob} file
 * @param {(bytes: Uint8Array<ArrayBuffer>) => Promise<ArrayBuffer>} hash
 */
async function checked(file, hash) {
  const whole = new Uint8Array(await file.arrayBuffer());
  const bytes = whole.subarray(HASH_BYTES);
  const expected = new Uint8Array(await hash(bytes));
  if (expected.some((byte, at) => byte !== whole[at])) throw new Error("the snapshot is of something else");
  return bytes;
}
