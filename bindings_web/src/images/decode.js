// Image files to RGB, by the browser's own decoders: upright, composited onto white, colours as they are in the file.

import { checkHeader } from "./header.js";
import { checkBytes, checkSize } from "./limits.js";

/** @import { Rgb } from "./resize.js" */

const STRIP_PIXELS = 1 << 20; // read from a canvas at once: some browsers limit its size

/**
 * The first frame of an image file. Rejects with RangeError for what is no image, exceeds the limits or is damaged.
 *
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Promise<Rgb>}
 */
export async function decode(bytes) {
  checkBytes(bytes.length);
  const kind = checkHeader(bytes);
  let bitmap;
  try {
    const options = /** @type {const} */ ({ imageOrientation: "from-image", colorSpaceConversion: "none" });
    bitmap = await createImageBitmap(new Blob([bytes]), options);
  } catch (error) {
    throw new RangeError(`the image is a damaged ${kind}, or one that this browser cannot decode. Send the whole file.`, { cause: error });
  }
  try {
    checkSize(bitmap.width, bitmap.height);
    return onWhite(bitmap);
  } finally {
    bitmap.close();
  }
}

/** @param {ImageBitmap} bitmap @returns {Rgb} */
function onWhite(bitmap) {
  const { width, height } = bitmap;
  const rows = Math.min(height, Math.max(1, Math.floor(STRIP_PIXELS / width)));
  const canvas = new OffscreenCanvas(width, rows);
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  if (!context) throw new RangeError(`this browser has no canvas of ${width}x${rows} pixels. Scale the image down.`);
  const data = new Uint8Array(3 * width * height);
  let at = 0;
  for (let top = 0; top < height; top += rows) {
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, rows);
    context.drawImage(bitmap, 0, -top);
    const pixels = context.getImageData(0, 0, width, Math.min(rows, height - top)).data;
    for (let from = 0; from < pixels.length; from += 4, at += 3) {
      [data[at], data[at + 1], data[at + 2]] = [pixels[from], pixels[from + 1], pixels[from + 2]];
    }
  }
  return { width, height, data };
}
