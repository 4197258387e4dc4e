// How large an image may be, and what a part has as its image: the twin of embedllm/images/limits.py and parts.py.

export const MAX_BYTES = 50 << 20; // of a file
export const MAX_IMAGES = 1000; // of a prompt
const MAX_PIXELS = 50_000_000;
const MAX_SIDE = 32_768; // pixels
const NAMES = ["image", "image_url", "url"]; // under which a part may have its image

/** Throws RangeError for a file that is too large. @param {number} bytes */
export function checkBytes(bytes) {
  if (bytes > MAX_BYTES) {
    throw new RangeError(`the image has ${bytes} bytes; ${MAX_BYTES} are allowed. Scale it down.`);
  }
  if (!bytes) throw new RangeError("the image is empty; expected a JPEG, PNG, WebP, GIF or BMP file.");
}

/** Throws RangeError for a size in pixels that is none, or is too large. @param {number} width @param {number} height */
export function checkSize(width, height) {
  if (width < 1 || height < 1) throw new RangeError(`the image is ${width}x${height} pixels; expected at least 1x1.`);
  if (Math.max(width, height) > MAX_SIDE || width * height > MAX_PIXELS) {
    throw new RangeError(
      `the image is ${width}x${height} pixels; sides of ${MAX_SIDE} and ${MAX_PIXELS} pixels in all are allowed. ` +
        "Scale it down.",
    );
  }
}

/**
 * What a part has as its image. Throws RangeError where there is none, or more than one.
 *
 * @param {Record<string, any>} part
 * @returns {unknown}
 */
export function imageOf(part) {
  let found = NAMES.map((name) => part[name]).filter((image) => image !== undefined && image !== null);
  if (found.length === 1 && Object.getPrototypeOf(found[0]) === Object.prototype) found = [found[0].url ?? []].flat();
  if (found.length === 1) return found[0];
  throw new RangeError(
    `a part of the type '${part.type}' has ${found.length} images, under the names ${Object.keys(part).join(", ")}; ` +
      "expected one: {type: 'image_url', image_url: {url: 'data:image/png;base64,...'}}, or {type: 'image', image: " +
      "a Blob, a canvas, an ImageBitmap or an <img>}.",
  );
}

/**
 * Throws RangeError for an address, and for what is no data URL in base64; gives where its base64 begins.
 *
 * @param {string} url
 */
export function dataStart(url) {
  const shown = JSON.stringify(url.length > 80 ? `${url.slice(0, 77)}...` : url);
  if (/^\s*(https?|ftp|file|blob):/i.test(url)) {
    throw new RangeError(
      `an image is the address ${shown}; embedllm downloads no images. Fetch it, and give the Blob or a data URL.`,
    );
  }
  const comma = url.indexOf(",");
  if (!/^data:/i.test(url) || comma < 0 || !/;base64$/i.test(url.slice(0, comma))) {
    throw new RangeError(`an image is the text ${shown}; expected a data URL: data:image/png;base64,...`);
  }
  checkBytes(Math.floor(((url.length - comma - 1) / 4) * 3));
  return comma + 1;
}
