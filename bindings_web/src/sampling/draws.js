// How tokens will be chosen, for a device that guesses them before the host does: src/engine/next_token.js.

import { Random } from "./mersenne_twister.js";

/**
 * @import { Draws } from "../engine/next_token.js"
 * @import { Sampling } from "./options.js"
 */

/**
 * By the numbers that `random` gives next; null where the row of logits is not all that decides.
 *
 * @param {Sampling} sampling @param {Random} random
 * @returns {Draws | null}
 */
export function drawsOf(sampling, random) {
  const { temperature, top_k, top_p, min_p, typical_p } = sampling;
  if (sampling.penalizes) return null;
  if (sampling.isGreedy) return { temperature: 0, top_k: 0, top_p: 1, min_p: 0, uniform: () => 0 };
  return typical_p < 1 ? null : { temperature, top_k, top_p, min_p, uniform: (place) => random.peek(place) };
}

/**
 * By the numbers that another one with this seed draws, one for each token: Python's.
 *
 * @param {Sampling} sampling with a seed @param {number} limit tokens to choose at most
 */
export function drawsBySeed(sampling, limit) {
  const random = new Random(sampling.seed);
  const draws = drawsOf(sampling, random);
  return draws && { ...draws, note: () => (random.random(), void limit--), left: () => limit };
}
