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
