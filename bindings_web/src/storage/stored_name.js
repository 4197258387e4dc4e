// Under which name a downloaded file is stored: the hash by which it is checked.

/** @import { Wanted } from "./download.js" */

/**
 * The hashes of its blocks, where a file is checked by them: the browser's own, which is ten times as fast as any in
 * JavaScript and computes beside the download, takes whole blocks only. Else undefined.
 *
 * @param {Wanted} wanted
 */
export const checkedBlocks = ({ blocks, sources }) => (sources.length === 1 && crypto.subtle ? blocks : undefined);

/** @param {Wanted} wanted */
export const storedName = (wanted) => checkedBlocks(wanted)?.root ?? wanted.sha256;

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** @param {Uint8Array<ArrayBuffer>} bytes copied at once */
export const digest = async (bytes) => hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
