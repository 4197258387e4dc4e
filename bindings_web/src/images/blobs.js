// What a page gives as an image, as what can be posted: files as they are, pixels as PNG, which loses nothing.

import { checkBytes, checkSize, dataStart, imageOf } from "./limits.js";
import { withImages } from "./parts.js";

/**
 * Messages whose images are Blobs or data URLs. Rejects with RangeError, which names the message, for what is no image.
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
    if (typeof image !== "string") return { type: "image", image: await blob(image) };
    dataStart(image);
    return { type: "image_url", image_url: { url: image } };
  } catch (error) {
    throw new RangeError(`messages[${place}]: ${error instanceof Error ? error.message : error}`, { cause: error });
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
