// What to say when a site may store too little; of no use where all is stored.

import { PackageError } from "../errors.js";
import { spaceOfSite } from "./quota.js";
import { storedName } from "./stored_name.js";

/** @typedef {import("./download.js").Wanted} Wanted */

/**
 * Throws PackageError when files that are not stored have no room.
 * @param {Wanted[]} files
 * @param {ReadonlyMap<string, number>} sizes  bytes of what is stored, by name
 */
export async function checkRoom(files, sizes) {
  let needed = 0;
  for (const file of new Map(files.map((file) => [file.sha256, file])).values()) {
    needed += Math.max(0, file.bytes - (sizes.get(`${storedName(file)}.part`) ?? 0));
  }
  const available = await freeBytes();
  if (available !== null && needed > available) {
    throw noRoom(files.map(({ name }) => `'${name}'`).join(", "), needed, available);
  }
}

/**
 * The bytes that can still be stored here; null where the browser does not tell.
 * @returns {Promise<number | null>}
 */
export async function freeBytes() {
  const { quota, usage } = await spaceOfSite();
  return quota === null || usage === null ? null : Math.max(0, quota - usage);
}

/**
 * The error of files that find no room; it has both numbers as fields too.
 *
 * available: what the browser tells, which may be more than it gives: Chromium 156 always tells of 10 GiB.
 * @param {string} names
 * @param {number} needed  bytes
 * @param {number | null} available
 */
export function noRoom(names, needed, available) {
  const left = available === null || available >= needed ? null : available;
  const error = new PackageError(
    `no room for ${names}: ${needed} bytes are needed, ${left === null ? "less is" : `${left} bytes are`} left for ` +
      "this site. Free space on the disk, remove a stored model, or load a smaller one.",
  );
  return Object.assign(error, { needed, available: left });
}
