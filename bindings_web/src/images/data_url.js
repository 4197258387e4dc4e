// Images of a conversation's history as data URLs, which JSON can hold.

import { imageOf } from "./limits.js";
import { withImages } from "./parts.js";

const PIECE_BYTES = 3 << 19; // of a file that are read at once: a long task otherwise. Base64 of multiples of 3 can be joined

/**
 * A message with data URLs in place of Blobs.
 *
 * @param {any} message as blobs.js gives it
 * @returns {Promise<any>}
 */
export function withDataUrls(message) {
  return withImages(message, async (part) => {
    const image = imageOf(part);
    return image instanceof Blob ? { type: "image_url", image_url: { url: await dataUrl(image) } } : part;
  });
}

/** @param {Blob} file @returns {Promise<string>} */
async function dataUrl(file) {
  let url = `data:${file.type || "application/octet-stream"};base64,`;
  for (let at = 0; at < file.size; at += PIECE_BYTES) {
    const piece = await readDataUrl(file.slice(at, at + PIECE_BYTES));
    url += piece.slice(piece.indexOf(",") + 1);
  }
  return url;
}

/** @param {Blob} piece @returns {Promise<string>} */
function readDataUrl(piece) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(/** @type {string} */ (reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(piece);
  });
}
