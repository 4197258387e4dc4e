// Sums of softmax weights over a part of a row, the inner loops of array_logits.js.
//
// A weight is exp((logit - best) * scale), where scale is 1 / temperature. Each function adds to the sum it is given,
// token by token in the order of ids, so that a sum taken up again in the middle of a row has the same rounding. The unary
// plus tells V8 that a sum which begins as 0 is a float: without it the loop took 1.7 times as long (Node 20).

/**
 * Smaller exponents count as -Infinity, as in embedllm/sampling/numpy_logits.py: 152,000 tokens of exp(-80) are 1e-30 of the best one's
 * probability, which a float64 sum of it loses in rounding.
 */
export const NEGLIGIBLE = -80;

const STEPS = 2048; // of the table, for each factor of 2
const STEPS_PER_UNIT = STEPS / Math.LN2;
const UNIT = Math.LN2 / STEPS;
const FRACTIONS = Float64Array.from({ length: STEPS }, (_, step) => 2 ** (-step / STEPS));
const HALVINGS = Float64Array.from({ length: 128 }, (_, count) => 2 ** -count); // exp(-80) is 2^-115.4

/**
 * exp(x), to 1e-12 of it, from two tables and the series of what is left, below 0.00017. A step asks for 150,000 of them:
 * a sixth of the time of Math.exp (tests/benchmarks/bench_web_rule.mjs).
 *
 * @param {number} x above NEGLIGIBLE, at most 0
 * @returns {number}
 */
export function exponential(x) {
  const step = (0.5 - x * STEPS_PER_UNIT) | 0;
  const rest = x + step * UNIT;
  return FRACTIONS[step & (STEPS - 1)] * HALVINGS[step >> 11] * (1 + rest * (1 + rest * 0.5));
}

/**
 * The weight of a logit.
 *
 * @param {number} distance logit - best
 * @param {number} scale
 * @returns {number}
 */
export function weightOf(distance, scale) {
  const exponent = distance * scale;
  return exponent > NEGLIGIBLE ? exponential(exponent) : 0;
}

/**
 * How many of the first `stop` values are equal to this one.
 *
 * @param {Float32Array} row
 * @param {number} stop
 * @param {number} value
 */
export function countEqual(row, stop, value) {
  let count = 0;
  for (let token = 0; token < stop; token++) if (row[token] === value) count++;
  return count;
}

/**
 * Adds the weights.
 *
 * @param {Float32Array} row
 * @param {number} start
 * @param {number} stop
 * @param {number} best
 * @param {number} scale
 * @param {number} sum
 */
export function addWeights(row, start, stop, best, scale, sum) {
  sum = +sum;
  for (let token = start; token < stop; token++) {
    const exponent = (row[token] - best) * scale;
    if (exponent > NEGLIGIBLE) sum += exponential(exponent);
  }
  return sum;
}

/**
 * Adds the weights to sums[0], and the weights times the logits' distances to the best one to sums[1].
 *
 * @param {Float32Array} row
 * @param {number} start
 * @param {number} stop
 * @param {number} best
 * @param {number} scale
 * @param {Float64Array} sums
 */
export function addBoth(row, start, stop, best, scale, sums) {
  let mass = sums[0];
  let moment = sums[1];
  for (let token = start; token < stop; token++) {
    const distance = row[token] - best;
    const exponent = distance * scale;
    if (exponent <= NEGLIGIBLE) continue;
    const weight = exponential(exponent);
    mass += weight;
    moment += distance * weight;
  }
  sums[0] = mass;
  sums[1] = moment;
}

/**
 * Adds the weights of logits above `low` and below `high`.
 *
 * @param {Float32Array} row
 * @param {number} start
 * @param {number} stop
 * @param {number} best
 * @param {number} scale
 * @param {number} low
 * @param {number} high
 * @param {number} sum
 */
export function addBetween(row, start, stop, best, scale, low, high, sum) {
  sum = +sum;
  for (let token = start; token < stop; token++) {
    const logit = row[token];
    if (!(logit > low && logit < high)) continue;
    const exponent = (logit - best) * scale;
    if (exponent > NEGLIGIBLE) sum += exponential(exponent);
  }
  return sum;
}

/**
 * The first token at which the sum of weights passes the target; the last that adds anything if rounding left none.
 *
 * @param {Float32Array} row
 * @param {number} start
 * @param {number} stop
 * @param {number} best
 * @param {number} scale
 * @param {number} sum
 * @param {number} target
 */
export function tokenPast(row, start, stop, best, scale, sum, target) {
  let last = start;
  for (let token = start; token < stop; token++) {
    const exponent = (row[token] - best) * scale;
    if (exponent <= NEGLIGIBLE) continue;
    last = token;
    sum += exponential(exponent);
    if (sum > target) break;
  }
  return last;
}

/**
 * The first place whose cumulative sum is above target; the last that adds anything if rounding left none.
 *
 * @param {Float64Array} cumulative
 * @param {number} target
 */
export function firstPast(cumulative, target) {
  const sum = cumulative[cumulative.length - 1];
  let [low, high] = [0, cumulative.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cumulative[middle] > target || cumulative[middle] === sum) high = middle;
    else low = middle + 1;
  }
  return low;
}
