// What a page gives as an image, as a data URL: encoded files as they are, pixels as PNG, which loses nothing.

import { checkBytes, checkSize, dataStart, imageOf } from "./limits.js";
import { hasImages, isImagePart } from "./parts.js";

/**
 * Messages whose images are data URLs. Rejects with RangeError, which names the message, for what is no image.
 *
 * @param {any} messages
 * @returns {Promise<any>}
 */
export function withDataUrls(messages) {
  return Promise.all(messages.map(async (/** @type {any} */ message, /** @type {number} */ place) => {
    if (!hasImages([message])) return message;
    const shown = (/** @type {any} */ part) => (isImagePart(part) ? urlPart(part, place) : part);
    return { ...message, content: await Promise.all(message.content.map(shown)) };
  }));
}

/** @param {Record<string, any>} part @param {number} place of its message */
async function urlPart(part, place) {
  try {
    return { type: "image_url", image_url: { url: await dataUrl(imageOf(part)) } };
  } catch (error) {
    throw new RangeError(`messages[${place}]: ${error instanceof Error ? error.message : error}`, { cause: error });
  }
}

/** @param {any} image @returns {Promise<string>} */
async function dataUrl(image) {
  if (typeof image === "string") {
    dataStart(image);
    return image;
  }
  const isBytes = image instanceof ArrayBuffer || ArrayBuffer.isView(image);
  const file = image instanceof Blob ? image : isBytes ? new Blob([/** @type {BlobPart} */ (image)]) : await png(image);
  checkBytes(file.size);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(/** @type {string} */ (reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
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
    /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(bitmap, 0, 0);
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
