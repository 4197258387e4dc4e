// Copies of a row in which some logits are changed: by penalties, or by a grammar that forbids tokens.

/**
 * What penalties change: these tokens, each named once, and for each its bias, its divisor and what is subtracted.
 *
 * @typedef {{tokens: ArrayLike<number>, biases: ArrayLike<number>, divisors: ArrayLike<number>,
 *   subtracted: ArrayLike<number>}} Changes
 */

/**
 * The row with logit + bias; that over the divisor if positive and times it if not; less what is subtracted. Each step is
 * rounded to float32, as in embedllm/sampling/numpy_logits.py.
 *
 * @param {Float32Array} row
 * @param {Changes} changes
 */
export function penalized(row, { tokens, biases, divisors, subtracted }) {
  const { fround } = Math;
  const changed = row.slice();
  for (let place = 0; place < tokens.length; place++) {
    const token = checkedToken(tokens[place], row.length);
    const biased = fround(row[token] + fround(biases[place]));
    const divisor = fround(divisors[place]);
    const scaled = fround(biased > 0 ? biased / divisor : biased * divisor);
    changed[token] = scaled - fround(subtracted[place]);
  }
  return changed;
}

/**
 * The row with -Infinity for every token without a bit.
 *
 * @param {Float32Array} row
 * @param {Uint32Array | Int32Array} bits that of token t is in word t >> 5 at place t & 31
 */
export function masked(row, bits) {
  const changed = new Float32Array(row.length).fill(-Infinity);
  const words = Math.min(bits.length, Math.ceil(row.length / 32));
  for (let place = 0; place < words; place++) {
    const word = bits[place];
    const start = place * 32;
    if ((word | 0) === -1) changed.set(row.subarray(start, start + 32), start);
    else if (word) {
      const end = Math.min(start + 32, row.length);
      for (let token = start; token < end; token++) if ((word >>> (token & 31)) & 1) changed[token] = row[token];
    }
  }
  return changed;
}

/**
 * A token that is in a vocabulary of this size.
 *
 * @param {number} token
 * @param {number} size
 */
export function checkedToken(token, size) {
  if (!Number.isInteger(token) || token < 0 || token >= size) {
    throw new RangeError(`token ${token} is not in the vocabulary; expected 0 to ${size - 1}`);
  }
  return token;
}
