// The rule that applies the options of sampling to the logits of one step: the twin of embedllm/sampling/sampler.py.
//
// Log probabilities are those of the model: the log softmax of the logits as they came, before bias and penalties.

import { drawsOf } from "./draws.js";
import { DeviceError } from "../errors.js";
import { Penalties } from "./penalties.js";
import { Random } from "./mersenne_twister.js";
import { aboveShare, drawnFrom, listed, meanOf, nucleus, typical } from "./truncation.js";

/** @typedef {import("./array_logits.js").ArrayLogits} ArrayLogits */
/** @typedef {import("./options.js").Sampling} Sampling */
/** @typedef {import("./truncation.js").Shortlist} Shortlist */

// How many of the best tokens are looked at, in turn, until they are seen to hold all that the truncations keep.
const FIRST_LOOK = 255;
const SECOND_LOOK = 4096;

// Draws from the whole vocabulary that may miss a large kept set: see embedllm/sampling/sampler.py.
const TRIES = 16;

// How far rounding may take the log probability of a token from that of a uniform distribution.
const UNIFORM = 1e-3;

/**
 * A chosen token and its natural log probability in the model's own distribution.
 *
 * @typedef {{token: number, logprob: number}} Picked
 */

/**
 * What one reply may still say; a grammar's matcher is one: src/grammar/grammar.js. The twin of embedllm/sampling/constraint.py.
 *
 * isDone: nothing but a stop token may follow. isStopAllowed: the reply would be whole if it ended now. mask: a copy in
 * which every token that may not come next has -Infinity. note: takes the token that is now part of the reply, a stop
 * token too.
 *
 * @typedef {object} Constraint
 * @property {boolean} isDone
 * @property {boolean} isStopAllowed
 * @property {(row: ArrayLogits) => ArrayLogits} mask
 * @property {(token: number) => void} note
 */

/**
 * Picks the tokens of one sequence; holds its random state and which tokens it has seen.
 *
 * `pick` chooses; `note` tells what entered the sequence.
 */
export class Sampler {
  #constraint;
  #sampling;
  #random;
  #penalties;

  /**
   * @param {Sampling} sampling
   * @param {Iterable<number>} [promptTokens]
   * @param {{constraint?: Constraint | null}} [options] constraint: what it allows is all that is chosen from, whatever
   *   biases and penalties say
   */
  constructor(sampling, promptTokens = [], { constraint = null } = {}) {
    this.#constraint = constraint;
    this.#sampling = sampling;
    this.#random = new Random(sampling.seed);
    this.#penalties = new Penalties(sampling, promptTokens);
  }

  /**
   * The next token.
   *
   * @param {ArrayLogits} row
   * @returns {Picked}
   * @throws RangeError when a biased or seen token is not in the vocabulary, or no token is allowed
   */
  pick(row) {
    const applied = this.#penalties.applied(row);
    const allowed = this.#constraint ? this.#constraint.mask(applied) : applied;
    const token = choose(allowed, this.#sampling, () => this.#random.random());
    return { token, logprob: logprob(row, token) };
  }

  /** How tokens will be chosen, for a device that guesses them; null where more than the row decides. */
  get draws() {
    return this.#constraint ? null : drawsOf(this.#sampling, this.#random);
  }

  /**
   * Count a token that is now part of the reply, whether it was picked or given.
   *
   * @param {number} token
   */
  note(token) {
    this.#penalties.note(token);
    this.#constraint?.note(token);
  }

  /** Whether a constraint leaves nothing but a stop token. */
  get isDone() {
    return this.#constraint !== null && this.#constraint.isDone;
  }
}

/**
 * Refuses logits that are all equal, of which greedy decoding would repeat token 0 for ever.
 *
 * @param {ArrayLogits} row
 * @param {number} logprob of any token; only where it is that of a uniform distribution is the row itself read
 * @throws DeviceError
 */
export function checkLogits(row, logprob) {
  const { size } = row;
  if (size > 1 && Math.abs(logprob + Math.log(size)) < UNIFORM && row.deviation() === 0) {
    throw new DeviceError(
      `all ${size} logits of the model are ${row.top(1).logits[0]}; expected different ones. Its weights are damaged, ` +
        "or overflowed when the model was run; export it again, or try another device or a wider type.",
    );
  }
}

/**
 * The natural log probability of this token as the logits stand.
 *
 * @param {ArrayLogits} row
 * @param {number} token
 * @returns {number}
 */
export function logprob(row, token) {
  return row.values([token])[0] - row.logsumexp();
}

/**
 * The `count` most probable tokens as the logits stand, best first.
 *
 * @param {ArrayLogits} row
 * @param {number} count
 * @returns {Picked[]}
 */
export function topLogprobs(row, count) {
  const { tokens, logits } = row.top(count);
  const logsumexp = row.logsumexp();
  return Array.from(tokens, (token, place) => ({ token, logprob: logits[place] - logsumexp }));
}

/**
 * The next token, by temperature, truncations and the draw; of equally good ones, greedy takes the lowest id.
 *
 * @param {ArrayLogits} row
 * @param {Sampling} sampling
 * @param {() => number} uniform gives numbers in [0, 1), as many as are asked for
 * @returns {number}
 */
export function choose(row, sampling, uniform) {
  if (sampling.isGreedy) return row.top(1).tokens[0];
  if (!sampling.truncates) return row.draw(sampling.temperature, uniform());
  const kept = truncated(row, sampling, FIRST_LOOK);
  if (kept) return drawnFrom(kept, uniform());
  const token = drawKept(row, sampling, uniform);
  if (token !== null) return token;
  const found = truncated(row, sampling, SECOND_LOOK) ?? truncated(row, sampling, row.size);
  if (!found) throw new Error("a list of every token left some unlisted: a defect of this library, please report it");
  return drawnFrom(found, uniform());
}

/**
 * The tokens that all truncations leave, exactly; null when the `look` best do not show which.
 *
 * @param {ArrayLogits} row
 * @param {Sampling} sampling
 * @param {number} look not asked for when top_k says how many are enough
 * @returns {Shortlist | null}
 */
export function truncated(row, sampling, look) {
  const { temperature, top_k, top_p, min_p, typical_p } = sampling;
  const best = row.top(top_k || look);
  const isAll = top_k > 0 || look >= row.size;
  if (typical_p < 1 && !isAll) row.mean(temperature); // first: the sum below comes with it
  /** @type {Shortlist | null} */
  let kept = listed(best, temperature, isAll ? null : row.logsumexp(temperature));
  if (typical_p < 1) kept = typical(kept, typical_p, kept.isWhole ? meanOf(kept) : row.mean(temperature));
  if (kept && top_p < 1) kept = nucleus(kept, top_p);
  if (kept && min_p > 0) kept = aboveShare(kept, min_p);
  return kept?.isWhole ? kept : null;
}

/**
 * A token from a large kept set, found by drawing from all until one is in it; null if there was none.
 *
 * Whether a token is in the set is one sum, however large the set; that of a flat distribution has 100,000 tokens. Not
 * for typical_p with another truncation, where membership depends on sums over the typical set alone.
 *
 * @param {ArrayLogits} row
 * @param {Sampling} sampling
 * @param {() => number} uniform
 * @returns {number | null}
 */
function drawKept(row, { temperature, top_p, min_p, typical_p }, uniform) {
  const isTypical = typical_p < 1;
  if (isTypical && (top_p < 1 || min_p > 0)) return null;
  const mass = isTypical ? typical_p : top_p;
  const centre = isTypical ? row.mean(temperature) : Infinity;
  const least = min_p > 0 ? row.top(1).logits[0] + temperature * Math.log(min_p) : -Infinity;
  for (let tries = 0; tries < TRIES; tries++) {
    const token = row.draw(temperature, uniform());
    if (row.values([token])[0] < least) continue;
    if (mass === 1 || row.massNearer(token, centre, temperature) < mass) return token;
  }
  return null;
}
