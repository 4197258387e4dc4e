// Images of a conversation's history as data URLs, which JSON can hold.

import { remember, urlOf } from "./blobs.js";
import { isImagePart } from "./parts.js";

const PIECE_BYTES = 3 << 19; // of a file that are read at once: a long task otherwise. Base64 of multiples of 3 can be joined

/**
 * A copy of a message, with data URLs in place of Blobs.
 *
 * @param {any} message as blobs.js gives it
 * @returns {Promise<any>}
 */
export async function withDataUrls(message) {
  const { content, ...rest } = message;
  const copied = (/** @type {any} */ part) => (isImagePart(part) ? stored(part) : structuredClone(part));
  return { ...structuredClone(rest), content: Array.isArray(content) ? await Promise.all(content.map(copied)) : content };
}

/** @param {{image: Blob}} posted or one that came from a data URL */
async function stored(posted) {
  const url = urlOf(posted) ?? (await dataUrl(posted.image));
  const part = { type: "image_url", image_url: { url } };
  remember(part, url, posted); // for the next turn
  return part;
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
