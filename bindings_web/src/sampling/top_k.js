// The highest values of an array, in order, without sorting all of it.
//
// A value and its place become one number, a key: keys in ascending order are values in descending order, and equal
// values in the order of their places. So a typed array's own sort, without a function that compares, does the rest.

/** 32 bits of a float32 and 21 of its place fill the 53 bits that a number holds exactly. */
export const MOST_TOKENS = 2 ** 21;

/** How many values of a row share the maximum that is kept of them. */
export const BLOCK = 64;

const float = new Float32Array(1);
const bits = new Int32Array(float.buffer);

/** @param {number} value @param {number} place */
function keyOf(value, place) {
  float[0] = value + 0; // -0 is equal to 0, its bits are not
  // as whole numbers, the bits of positive floats ascend with their value, those of negative ones descend
  const rank = bits[0] < 0 ? bits[0] ^ 0x7fffffff : bits[0];
  return place - rank * MOST_TOKENS;
}

/**
 * The place that a key stands for.
 *
 * @param {number} key
 * @returns {number}
 */
export function tokenOf(key) {
  return key - Math.floor(key / MOST_TOKENS) * MOST_TOKENS;
}

/**
 * The highest value of each block of BLOCK values; NaN where there is one.
 *
 * @param {Float32Array} values
 */
export function blockMaxima(values) {
  const maxima = new Float32Array(Math.ceil(values.length / BLOCK));
  for (let block = 0; block < maxima.length; block++) {
    const stop = Math.min((block + 1) * BLOCK, values.length);
    let highest = -Infinity;
    for (let place = block * BLOCK; place < stop; place++) highest = Math.max(highest, values[place]);
    maxima[block] = highest;
  }
  return maxima;
}

/**
 * What is known of an array before its values are compared: its blockMaxima(), and a number that at least as many
 * values reach as are asked for.
 *
 * @typedef {{maxima: Float32Array, bound: number}} Known
 */

/**
 * The keys of the `count` highest values, best first; the values must hold no NaN.
 *
 * Values that may be among them gather in a buffer. Whenever it is full, it is sorted and the worst are dropped; the
 * worst of the others is then what a value must exceed.
 *
 * @param {Float32Array} values
 * @param {number} count at most as many as there are
 * @param {Known} [known]
 * @returns {Float64Array}
 */
export function highestKeys(values, count, { maxima, bound } = { maxima: blockMaxima(values), bound: -Infinity }) {
  const keys = new Float64Array(Math.min(values.length, 4 * count + 256));
  let found = 0;
  let floor = bound;
  let takesEqual = true; // until `count` are kept, which as the earlier ones come before
  for (let block = 0; block < maxima.length; block++) {
    if (takesEqual ? maxima[block] < floor : maxima[block] <= floor) continue;
    const stop = Math.min((block + 1) * BLOCK, values.length);
    for (let place = block * BLOCK; place < stop; place++) {
      const value = values[place];
      if (!(value > floor || (takesEqual && value === floor))) continue;
      if (found === keys.length) {
        keys.sort();
        found = count;
        floor = values[tokenOf(keys[count - 1])];
        takesEqual = false;
        if (value <= floor) continue;
      }
      keys[found++] = keyOf(value, place);
    }
  }
  return keys.subarray(0, found).sort().subarray(0, count);
}
