// What bias and penalties do to the logits, before anything is drawn: the twin of embedllm/sampling/penalties.py.

/** @typedef {import("./array_logits.js").ArrayLogits} ArrayLogits */
/** @typedef {import("./options.js").Sampling} Sampling */

/**
 * The bias and penalties of one sequence: an entry for every token that is biased or was seen.
 *
 * Kept as parallel arrays and brought up to date token by token, so that a step counts none again.
 */
export class Penalties {
  #sampling;
  #highest = -1; // of the tokens
  /** @type {Map<number, number>} */
  #counts = new Map();
  /** @type {Map<number, number>} */
  #places = new Map();
  /** @type {number[]} */
  #tokens = [];
  /** @type {number[]} */
  #biases = [];
  /** @type {number[]} */
  #divisors = [];
  /** @type {number[]} */
  #subtracted = [];

  /** @param {Sampling} sampling @param {Iterable<number>} [promptTokens] */
  constructor(sampling, promptTokens = []) {
    this.#sampling = sampling;
    for (const [token, bias] of sampling.logit_bias) this.#biases[this.#place(token)] = bias;
    if (sampling.repetition_penalty !== 1) {
      for (const token of promptTokens) this.#divisors[this.#place(token)] = sampling.repetition_penalty;
    }
  }

  /**
   * Count a token of the reply.
   *
   * @param {number} token
   */
  note(token) {
    const { repetition_penalty, presence_penalty, frequency_penalty } = this.#sampling;
    if (repetition_penalty === 1 && !presence_penalty && !frequency_penalty) return;
    const count = (this.#counts.get(token) ?? 0) + 1;
    this.#counts.set(token, count);
    const place = this.#place(token);
    this.#divisors[place] = repetition_penalty;
    this.#subtracted[place] = presence_penalty + frequency_penalty * count;
  }

  /**
   * The changed logits; the same ones when there is nothing to change.
   *
   * @param {ArrayLogits} row
   * @returns {ArrayLogits}
   */
  applied(row) {
    if (!this.#tokens.length) return row;
    if (this.#highest >= row.size) {
      throw new RangeError(
        `token ${this.#highest} is biased or was seen, but the model's vocabulary has ${row.size}. ` +
          "Check logit_bias, and that prompt and model have the same tokenizer.",
      );
    }
    return row.penalized({
      tokens: this.#tokens,
      biases: this.#biases,
      divisors: this.#divisors,
      subtracted: this.#subtracted,
    });
  }

  /** @param {number} token */
  #place(token) {
    const known = this.#places.get(token);
    if (known !== undefined) return known;
    const place = this.#tokens.length;
    this.#places.set(token, place);
    this.#highest = Math.max(this.#highest, token);
    this.#tokens.push(token);
    this.#biases.push(0);
    this.#divisors.push(1);
    this.#subtracted.push(0);
    return place;
  }
}
