// Sizes and speeds as people read them.

/** @param {number} bytes */
export function sizeText(bytes) {
  if (bytes < 1e6) return `${Math.ceil(bytes / 1e3)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

/** Tokens per second after the first one, which the prompt gave; null where that is no number. @param {{tokens: number, decode_s: number}} statistics */
export function rateOf({ tokens, decode_s }) {
  return tokens > 1 && decode_s > 0 ? (tokens - 1) / decode_s : null;
}
