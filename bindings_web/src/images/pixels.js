// Pixels as vision encoders take them.

/**
 * @import { Rgb } from "./resize.js"
 * @typedef {(floats: Float32Array<ArrayBuffer>) => Float32Array<ArrayBuffer> | Uint16Array<ArrayBuffer>} Narrow to the
 *   encoder's type
 */

/**
 * An image as [1, 3, height, width]: (value - mean) / std.
 *
 * @param {Rgb} image @param {{mean: number[], std: number[]}} pixels of values from 0 to 255, for each channel
 * @param {Narrow} narrow
 */
export function normalized({ width, height, data }, { mean, std }, narrow) {
  const area = width * height;
  const levels = [0, 1, 2].map((channel) => narrow(Float32Array.from({ length: 256 }, (_, level) =>
    Math.fround(level - Math.fround(mean[channel])) / Math.fround(std[channel]))));
  const made = levels[0] instanceof Uint16Array ? new Uint16Array(3 * area) : new Float32Array(3 * area);
  for (let place = 0; place < area; place++) {
    for (let channel = 0; channel < 3; channel++) made[channel * area + place] = levels[channel][data[3 * place + channel]];
  }
  return { data: made, dims: [1, 3, height, width] };
}

/** An image in squares, row by row. @param {Rgb} image of whole ones @param {number} side pixels @returns {Rgb[]} */
export function squares({ width, height, data }, side) {
  const found = [];
  for (let top = 0; top < height; top += side) {
    for (let left = 0; left < width; left += side) {
      const made = new Uint8Array(3 * side * side);
      for (let row = 0; row < side; row++) {
        const from = 3 * ((top + row) * width + left);
        made.set(data.subarray(from, from + 3 * side), 3 * row * side);
      }
      found.push({ width: side, height: side, data: made });
    }
  }
  return found;
}
