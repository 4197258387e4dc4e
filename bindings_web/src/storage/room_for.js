// Writes for which the browser may have no room.

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
    const { freeBytes, noRoom } = await import("./no_room.js");
    throw noRoom(what, missing(), await freeBytes());
  }
}
