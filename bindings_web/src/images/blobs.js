// What a page gives as an image, as what can be posted: files as they are, pixels as PNG, which loses nothing.

import { checkBytes, checkSize, dataStart, imageOf } from "./limits.js";
import { withImages } from "./parts.js";

/**
 * Parts whose image nobody can change, and what was posted for them: later turns post the same file, which the worker knows
 * by its id. Of a posted part: the data URL that it came from.
 *
 * @type {WeakMap<object, [image: unknown, posted: object]>}
 */
const known = new WeakMap();

/** @param {object} part with this image @param {unknown} image @param {object} posted in its place */
export const remember = (part, image, posted) => known.set(part, [image, posted]);

/** The data URL that a posted part came from, if any. @param {object} posted @returns {unknown} */
export const urlOf = (posted) => known.get(posted)?.[0];

/**
 * Messages whose images are Blobs, or data URLs where a browser does not decode them. Rejects with RangeError, which names
 * the message, for what is no image.
 *
 * @param {any} messages
 * @returns {Promise<any>}
 */
export function withBlobs(messages) {
  return Promise.all(messages.map((/** @type {any} */ message, /** @type {number} */ place) =>
    withImages(message, (part) => blobPart(part, place))));
}

/** @param {Record<string, any>} part @param {number} place of its message */
async function blobPart(part, place) {
  try {
    const image = imageOf(part);
    const [before, same] = known.get(part) ?? [];
    if (before === image) return same;
    const isUrl = typeof image === "string";
    const posted = { type: "image", image: isUrl ? decoded(image) : await blob(image), id: crypto.randomUUID?.() };
    if (isUrl) remember(posted, image, posted);
    if (isUrl || image instanceof Blob) remember(part, image, posted);
    return posted;
  } catch (error) {
    throw new RangeError(`messages[${place}]: ${/** @type {Error} */ (error).message}`, { cause: error });
  }
}

/** The file of a data URL, which is posted without a copy; or the URL as it is. @param {string} url */
function decoded(url) {
  const start = dataStart(url);
  try {
    return new Blob([/** @type {any} */ (Uint8Array).fromBase64(url.slice(start))]);
  } catch {
    return url; // the browser is older, or the worker says what is wrong
  }
}

/** @param {any} image @returns {Promise<Blob>} */
async function blob(image) {
  const isBytes = image instanceof ArrayBuffer || ArrayBuffer.isView(image);
  const file = image instanceof Blob ? image : isBytes ? new Blob([/** @type {BlobPart} */ (image)]) : await png(image);
  checkBytes(file.size);
  return file;
}

/** The pixels of a canvas, an ImageBitmap, ImageData, a VideoFrame or an element. @param {any} image */
async function png(image) {
  let bitmap;
  try {
    await image?.decode?.(); // an <img> that is still loading
    bitmap = await createImageBitmap(image);
  } catch (error) {
    const found = image?.constructor?.name ?? typeof image;
    throw new RangeError(
      `an image is a ${found} that cannot be drawn (${error instanceof Error ? error.message : error}); expected a data ` +
        "URL, a Blob, bytes, a canvas, an ImageBitmap, ImageData or an <img> that has loaded.",
    );
  }
  const { width, height } = bitmap;
  try {
    checkSize(width, height);
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("bitmaprenderer")?.transferFromImageBitmap(bitmap); // drawing it would take a long task
    return await canvas.convertToBlob({ type: "image/png" });
  } catch (error) {
    if (!(error instanceof DOMException) || error.name !== "SecurityError") throw error;
    throw new RangeError(
      "the image is of another site, which does not let this page read its pixels; load it with crossorigin, or give a file.",
    );
  } finally {
    bitmap.close();
  }
}
