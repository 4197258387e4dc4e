// How much a site may store, and what to say when it is not enough.

import { PackageError } from "../errors.js";

/**
 * The bytes that can still be stored here; null where the browser does not tell.
 * @returns {Promise<number | null>}
 */
export async function freeBytes() {
  const { quota, usage } = await spaceOfSite();
  return quota === null || usage === null ? null : Math.max(0, quota - usage);
}

/**
 * Bytes that this site stores and may store; null where the browser does not tell.
 * @returns {Promise<{usage: number | null, quota: number | null}>}
 */
export async function spaceOfSite() {
  const { usage, quota } = (await navigator.storage?.estimate?.().catch(() => undefined)) ?? {};
  return { usage: usage ?? null, quota: quota ?? null };
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

/**
 * Does what writes; the browser's refusal for want of room is a PackageError.
 * @param {string} what
 * @param {() => number} missing  bytes
 * @template T
 * @param {() => Promise<T>} write
 * @returns {Promise<T>}
 */
export async function roomFor(what, missing, write) {
  try {
    return await write();
  } catch (error) {
    if (/** @type {Error} */ (error).name !== "QuotaExceededError") throw error;
    throw noRoom(what, missing(), await freeBytes());
  }
}
