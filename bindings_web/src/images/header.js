// Kind and size of an image file by its header, before a browser allocates anything of that size.

import { checkSize } from "./limits.js";

const MAX_SCANNED_PIXELS = 2_000_000_000; // pixels times the scans of a progressive JPEG, of which cameras write about 10
const UNSIZED = [0xc4, 0xc8, 0xcc]; // markers among those of frames that are none

/**
 * The kind of a file. Throws RangeError for what is no JPEG, PNG, WebP, GIF or BMP, or has too many pixels.
 *
 * @param {Uint8Array} bytes
 */
export function checkHeader(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const text = (/** @type {number} */ at, /** @type {number} */ stop) => String.fromCharCode(...bytes.subarray(at, stop));
  const kind = kindOf(text);
  let size = null;
  try {
    size = kind && SIZES[kind](view, text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // behind the end of the file
  }
  if (!size) {
    throw new RangeError(
      `the image cannot be read: it begins with ${JSON.stringify(text(0, 12))}; expected a whole JPEG, PNG, WebP, GIF or BMP file.`,
    );
  }
  checkSize(...size);
  if (kind === "JPEG") checkScans(bytes, size[0] * size[1]);
  return kind;
}

/** @typedef {(at: number, stop: number) => string} Text bytes as letters */
/** @param {Text} text */
function kindOf(text) {
  if (text(0, 8) === "\x89PNG\r\n\x1a\n") return "PNG";
  if (text(0, 3) === "\xff\xd8\xff") return "JPEG";
  if (text(0, 4) === "RIFF" && text(8, 12) === "WEBP") return "WebP";
  if (text(0, 4) === "GIF8") return "GIF";
  return text(0, 2) === "BM" ? "BMP" : null;
}

/** Width and height. @type {Record<string, (view: DataView, text: Text) => [number, number] | null>} */
const SIZES = {
  PNG: (view) => [view.getUint32(16), view.getUint32(20)],
  GIF: (view) => [view.getUint16(6, true), view.getUint16(8, true)],
  BMP: (view) => view.getUint32(14, true) === 12
    ? [view.getUint16(18, true), view.getUint16(20, true)]
    : [Math.abs(view.getInt32(18, true)), Math.abs(view.getInt32(22, true))],
  WebP: (view, text) => { // RFC 9649, sections 2.5 to 2.7
    const kind = text(12, 16);
    const three = (/** @type {number} */ at) => 1 + view.getUint16(at, true) + (view.getUint8(at + 2) << 16);
    if (kind === "VP8X") return [three(24), three(27)];
    const bits = view.getUint32(kind === "VP8L" ? 21 : 26, true);
    if (kind === "VP8L") return [1 + (bits & 0x3fff), 1 + ((bits >> 14) & 0x3fff)];
    return [bits & 0x3fff, (bits >> 16) & 0x3fff];
  },
  JPEG: (view) => {
    for (let at = 2; ; at += 2 + view.getUint16(at + 2)) {
      while (view.getUint8(at) === 0xff && view.getUint8(at + 1) === 0xff) at++; // fill bytes
      const marker = view.getUint8(at + 1);
      if (view.getUint8(at) !== 0xff || marker === 0xda) return null;
      if (marker >= 0xc0 && marker <= 0xcf && !UNSIZED.includes(marker)) return [view.getUint16(at + 7), view.getUint16(at + 5)];
    }
  },
};

/** Throws RangeError for a JPEG whose many scans each take time for all of its pixels. @param {Uint8Array} bytes @param {number} pixels */
function checkScans(bytes, pixels) {
  let scans = 0;
  for (let at = bytes.indexOf(0xff); at >= 0; at = bytes.indexOf(0xff, at + 1)) scans += bytes[at + 1] === 0xda ? 1 : 0;
  if (scans * pixels > MAX_SCANNED_PIXELS) {
    throw new RangeError(`the image is a JPEG of ${scans} scans over ${pixels} pixels, which takes too long to decode.`);
  }
}
