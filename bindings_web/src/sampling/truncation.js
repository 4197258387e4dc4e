// Which tokens stay in the draw, over a short list of the best ones: the twin of embedllm/sampling/truncation.py.
//
// The list is often a small part of the vocabulary. Each step then tells from it alone what it keeps, exactly, or returns
// null where tokens outside the list could belong to it: look again with a longer list.

/** @typedef {import("./array_logits.js").Candidates} Candidates */

/**
 * The best tokens of one step, highest logit first, and how much there is besides them.
 *
 * weights: exp((logit - best logit) / temperature), above 0. total: weight of all tokens left, listed or not.
 * isWhole: whether all that are left are listed.
 *
 * @typedef {{tokens: Int32Array, logits: Float32Array, weights: Float64Array, total: number, isWhole: boolean}}
 *   Shortlist
 */

/**
 * The list of these tokens, less those whose weight is 0.
 *
 * @param {Candidates} best
 * @param {number} temperature
 * @param {number | null} logsumexp of logits / temperature over the vocabulary; null when `best` is all there is
 * @returns {Shortlist}
 */
export function listed({ tokens, logits }, temperature, logsumexp) {
  const highest = logits[0];
  const weights = Float64Array.from(logits, (logit) => Math.exp((logit - highest) / temperature));
  const some = firstIndex(weights, (weight) => weight <= 0);
  const isWhole = logsumexp === null || some < weights.length; // what is not listed weighs no more than the last
  const whole = first({ tokens, logits, weights, total: 0, isWhole: true }, some);
  if (isWhole) return whole;
  return { ...whole, total: Math.exp(logsumexp - highest / temperature), isWhole };
}

/**
 * Top-p: the fewest best tokens that hold this share of the weight; at least one.
 *
 * Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration".
 *
 * @param {Shortlist} shortlist
 * @param {number} mass
 * @returns {Shortlist | null}
 */
export function nucleus(shortlist, mass) {
  const target = mass * shortlist.total;
  const count = firstIndex(cumulated(shortlist.weights), (sum) => sum >= target) + 1;
  if (count > shortlist.weights.length && !shortlist.isWhole) return null;
  return first(shortlist, count);
}

/**
 * Min-p: the tokens at least this share as probable as the best one.
 *
 * Source: Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".
 *
 * @param {Shortlist} shortlist
 * @param {number} share
 * @returns {Shortlist | null}
 */
export function aboveShare(shortlist, share) {
  const least = share * shortlist.weights[0];
  const count = firstIndex(shortlist.weights, (weight) => weight < least);
  if (count === shortlist.weights.length && !shortlist.isWhole) return null;
  return first(shortlist, count);
}

/**
 * The fewest tokens of most ordinary surprise that hold this share of the weight; at least one.
 *
 * A token's surprise is -log of its probability, the most ordinary is the entropy, and the distance between the two is
 * that between the token's logit and `mean`, the expected logit, over the temperature.
 * Source: Meister et al. 2022, "Locally Typical Sampling".
 *
 * @param {Shortlist} shortlist
 * @param {number} mass
 * @param {number} mean
 * @returns {Shortlist | null}
 */
export function typical({ tokens, logits, weights, total, isWhole }, mass, mean) {
  const distances = Float64Array.from(logits, (logit) => Math.abs(logit - mean));
  const order = Uint32Array.from(weights, (_, place) => place);
  order.sort((one, other) => distances[one] - distances[other] || one - other);
  const sums = cumulated(Float64Array.from(order, (place) => weights[place]));
  const target = mass * total;
  const count = firstIndex(sums, (sum) => sum >= target) + 1;
  if (!isWhole) {
    const nearestUnlisted = mean - logits[logits.length - 1]; // at least so far, when it is above 0
    if (count > order.length || distances[order[count - 1]] > nearestUnlisted) return null;
  }
  const kept = order.slice(0, count).sort();
  const keptWeights = Float64Array.from(kept, (place) => weights[place]);
  return {
    tokens: Int32Array.from(kept, (place) => tokens[place]),
    logits: Float32Array.from(kept, (place) => logits[place]),
    weights: keptWeights,
    total: sumOf(keptWeights),
    isWhole: true,
  };
}

/**
 * The expected logit over the listed tokens.
 *
 * @param {Shortlist} shortlist
 * @returns {number}
 */
export function meanOf({ weights, logits }) {
  return weights.reduce((sum, weight, place) => sum + weight * logits[place], 0) / sumOf(weights);
}

/**
 * The token at which the cumulative weight passes this part of it.
 *
 * @param {Shortlist} shortlist
 * @param {number} uniform in [0, 1)
 * @returns {number}
 */
export function drawnFrom({ tokens, weights }, uniform) {
  const sums = cumulated(weights);
  const target = uniform * sums[sums.length - 1]; // a product below the sum, rounded too
  return tokens[firstIndex(sums, (sum) => sum > target)];
}

/**
 * The whole list of its `count` best tokens.
 *
 * @param {Shortlist} shortlist
 * @param {number} count
 * @returns {Shortlist}
 */
function first({ tokens, logits, weights }, count) {
  const kept = weights.subarray(0, count);
  const total = sumOf(kept);
  return { tokens: tokens.subarray(0, count), logits: logits.subarray(0, count), weights: kept, total, isWhole: true };
}

/** @param {Float64Array} weights */
function sumOf(weights) {
  return weights.reduce((sum, weight) => sum + weight, 0);
}

/** @param {Float64Array} weights */
function cumulated(weights) {
  let sum = 0;
  return weights.map((weight) => (sum += weight));
}

/**
 * The first place where it is true, of numbers that it is false for up to some place and true for from there on; their
 * count if there is none.
 *
 * @param {Float64Array} numbers
 * @param {(number: number) => boolean} isPast
 */
function firstIndex(numbers, isPast) {
  const place = numbers.findIndex(isPast);
  return place < 0 ? numbers.length : place;
}
