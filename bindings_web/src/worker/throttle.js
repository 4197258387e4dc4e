// Progress that is told as often as somebody can look at it.

/** @typedef {import("../storage/download.js").OnProgress} OnProgress */

const PROGRESS_MS = 50; // between two calls of onProgress

/**
 * Passes on at most one in PROGRESS_MS.
 * @param {OnProgress} [onProgress]
 * @returns {OnProgress}
 */
export function throttled(onProgress) {
  let last = 0;
  return (progress) => {
    const now = Date.now();
    if (now - last < PROGRESS_MS) return;
    last = now;
    onProgress?.(progress);
  };
}
