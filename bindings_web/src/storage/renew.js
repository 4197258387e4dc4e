// A file that is not stored, or may be damaged: hashed, and downloaded if need be, by one tab while the others wait.

import { isWeights, storedNames } from "../package/manifest.js";
import { PackageError } from "../errors.js";
import { checksOf, dateOf, isSlow, RECORD, wholeHash } from "./checks.js";
import { download } from "./download.js";
import { BlockHashes, Hashes, hashStored } from "./hashes.js";
import { locked } from "./locks.js";
import { openForReading } from "./opfs.js";
import { roomFor } from "./room_for.js";
import { storedName } from "./stored_name.js";

/**
 * @typedef {import("./opfs.js").Place} Place
 * @typedef {import("./download.js").Wanted} Wanted
 * @typedef {import("./download.js").Means & import("./download.js").Options} Means
 */

/**
 * The stored file if its hash is right, else it is removed and downloaded. Throws as download() does.
 * @param {Wanted} wanted
 * @param {Means & {place: Place, needRoom: () => Promise<void>, removeOld: () => Promise<boolean>}} means
 */
export async function renew(wanted, means) {
  const { place, needRoom } = means;
  const what = `'${wanted.name}'`;
  let damage = "";
  for (const name of storedNames(wanted)) {
    const file = await place.file(name);
    if (file?.size !== wanted.bytes) continue;
    const fault = place.isDisk ? await storedFault(file, name, wanted, means) : "";
    if (!fault) return note(file, name, wanted, place);
    damage = `the stored ${what} was damaged (${fault}) and is removed`;
    console.warn(`embedllm: ${damage}`);
    await place.remove(name);
  }
  await needRoom();
  const name = storedName(wanted);
  const growing = await roomFor(what, () => wanted.bytes, () => place.part(name));
  try {
    const rest = () => roomFor(what, () => wanted.bytes - growing.size(), () => download(wanted, growing, means));
    await rest().catch(async (error) => {
      if (!error.needed || !(await means.removeOld())) throw error;
      await rest(); // the browser gave less than it told of
    });
  } catch (error) {
    if (damage && error instanceof PackageError) error.message = `${damage}; ${error.message}`;
    throw error;
  } finally {
    growing.close();
  }
  return note(await place.file(name), name, wanted, place);
}

/**
 * What is wrong with a stored file; empty when nothing is.
 * @param {File | Blob} file
 * @param {string} name  by which it is stored
 * @param {Wanted} wanted
 * @param {Means} means
 */
async function storedFault(file, name, wanted, means) {
  const { bytes, sha256, blocks } = wanted;
  try {
    if (name === sha256 && !isSlow(name, wanted)) {
      const found = await wholeHash(file);
      return found === sha256 ? "" : `its sha256 is ${found}, the manifest says ${sha256}`;
    }
    const hashes = blocks && name === blocks.root ? new BlockHashes(blocks) : new Hashes(means.sha256, 1);
    const access = await openForReading(file);
    try {
      await hashStored({ name: wanted.name, start: 0, bytes }, reader(file, access), hashes, means);
    } finally {
      access?.close();
    }
    return await hashes.fault(sha256);
  } catch (error) {
    const { name, message } = /** @type {Error} */ (error);
    if (name === "NotReadableError") return message; // the disk fails
    throw error;
  }
}

/**
 * Writes down that weights are right now.
 * @param {File | Blob | null} file  null: it was removed at once
 * @param {string} name  by which it is stored
 * @param {Wanted} wanted
 * @param {Place} place
 */
async function note(file, name, wanted, place) {
  if (!file || !place.isDisk || !isWeights(wanted.name)) return file;
  const write = async () => {
    const sizes = await place.sizes();
    const others = Object.entries(await checksOf(place)).filter(([other]) => sizes.has(other));
    await place.write(RECORD, JSON.stringify({ ...Object.fromEntries(others), [name]: [dateOf(file), Date.now()] }));
  };
  await locked("embedllm models", undefined, write).catch(() => {}); // no room, say: they are hashed again
  return file;
}

/**
 * @param {Blob} file
 * @param {import("./opfs.js").OpenFile | null} access
 */
function reader(file, access) {
  return {
    size: () => file.size,
    /** @param {number} at @param {number} length */
    async read(at, length) {
      if (!access) return new Uint8Array(await file.slice(at, at + length).arrayBuffer());
      const block = new Uint8Array(length);
      return block.subarray(0, access.read(block, { at }));
    },
  };
}
