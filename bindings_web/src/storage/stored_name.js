// Under which name a downloaded file is stored: the hash by which it is checked.

/** @import { Wanted } from "./download.js" */

/**
 * Whether a file is checked by the hashes of its blocks: the browser's own, which is ten times as fast as any in
 * JavaScript and computes beside the download, takes whole blocks only.
 *
 * @param {Wanted} wanted
 */
export const checksBlocks = ({ blocks, sources }) => blocks !== undefined && sources.length === 1 && crypto.subtle !== undefined;

/** @param {Wanted} wanted */
export const storedName = (wanted) => (wanted.blocks && checksBlocks(wanted) ? wanted.blocks.root : wanted.sha256);

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
