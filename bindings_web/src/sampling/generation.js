// The decoder: which token next and when to stop, as a rule that does no I/O, and the loop that feeds it: the twin of
// embedllm/generation/generation.py.

import { Interrupted } from "../errors.js";
import { checkLogits, topLogprobs } from "./sampler.js";

/** @typedef {import("./array_logits.js").ArrayLogits} ArrayLogits */
/** @typedef {import("./sampler.js").Picked} Picked */
/** @typedef {import("./sampler.js").Sampler} Sampler */
/** @typedef {import("./text_stream.js").StopStrings} StopStrings */
/** @typedef {import("./text_stream.js").TextStream} TextStream */

/**
 * What a generation has cost so far. Times are seconds of a monotonic clock, without any pause between two chunks.
 *
 * prefill_s: feeding the prompt and choosing the first token. decode_s: feeding and choosing each later one. Neither has
 * what a consumer does with a chunk; both have the time until the event loop came back to a feed that was done.
 *
 * @typedef {object} Statistics
 * @property {number} prompt_tokens
 * @property {number} cached_tokens of the prompt's: held already from an earlier call, not computed again
 * @property {number} tokens generated, the stop token among them
 * @property {number} prefill_s
 * @property {number} decode_s
 */

/**
 * One step of a stream; a plain object, which can be posted to another thread.
 *
 * @typedef {object} Chunk
 * @property {string} text what is certain now; may be empty while a character or a possible stop string is incomplete
 * @property {number | null} token null when the stream ends without one: cancelled
 * @property {number | null} logprob natural log of the token's probability in the model's own distribution
 * @property {Picked[]} top_logprobs the most probable tokens of this step, when asked for
 * @property {"stop" | "length" | "context" | "cancelled" | null} finish_reason in the last chunk
 * @property {string | number | null} stopped_by what "stop" came from; null: the constraint
 * @property {Statistics} statistics
 */

/**
 * @typedef {object} GenerationParts
 * @property {Sampler} sampler
 * @property {TextStream} text
 * @property {StopStrings} stops
 * @property {Iterable<number>} stopTokens
 * @property {number} limit tokens to generate at most
 * @property {"length" | "context"} limitReason what reaching it is called
 * @property {number} [topCount] of the most probable tokens to report
 * @property {{prompt_tokens: number, cached_tokens: number}} statistics
 */

/** The rule of one generation: sampler, text, stops and limit, and how far it has come. */
export class Generation {
  #sampler;
  #text;
  #stops;
  #stopTokens;
  #limit;
  #limitReason;
  #topCount;
  /** @type {Readonly<Statistics>} */
  #statistics;
  #spent_s = 0; // seconds that are not in the statistics yet

  /** @param {GenerationParts} parts */
  constructor({ sampler, text, stops, stopTokens, limit, limitReason, topCount = 0, statistics }) {
    this.#sampler = sampler;
    this.#text = text;
    this.#stops = stops;
    this.#stopTokens = new Set(stopTokens);
    this.#limit = limit;
    this.#limitReason = limitReason;
    this.#topCount = topCount;
    const { prompt_tokens, cached_tokens } = statistics;
    this.#statistics = Object.freeze({ prompt_tokens, cached_tokens, tokens: 0, prefill_s: 0, decode_s: 0 });
  }

  /** What it has cost so far. */
  get statistics() {
    return this.#statistics;
  }

  /** Tokens still to be chosen, at most. */
  get left() {
    return this.#limit - this.#statistics.tokens;
  }

  /**
   * Decides one step; the last one has a finish_reason, and must not be followed by another.
   *
   * @param {ArrayLogits} row
   * @returns {Chunk}
   * @throws DeviceError for logits of a broken model: not finite, or all equal
   */
  accept(row) {
    const started = performance.now();
    const top_logprobs = this.#topCount ? topLogprobs(row, this.#topCount) : [];
    const { token, logprob } = this.#sampler.pick(row);
    checkLogits(row, logprob);
    this.#sampler.note(token);
    const isStop = this.#stopTokens.has(token);
    const isWhole = this.#sampler.isDone;
    let text = isStop ? "" : this.#stops.push(this.#text.push(token));
    const isLast = isStop || isWhole || this.#stops.matched !== null || this.#statistics.tokens + 1 >= this.#limit;
    if (isLast && this.#stops.matched === null) text += this.#rest();
    this.spend(started);
    this.#count(1);
    const stopped_by = this.#stops.matched ?? (isStop ? token : null);
    const finish_reason = stopped_by !== null || isWhole ? "stop" : isLast ? this.#limitReason : null;
    return { text, token, logprob, top_logprobs, finish_reason, stopped_by, statistics: this.#statistics };
  }

  /**
   * Counts the time of one feed or one decision, until now.
   *
   * @param {number} started as performance.now() told it
   */
  spend(started) {
    this.#spent_s += (performance.now() - started) / 1000;
  }

  /**
   * The last chunk of a generation that was ended from outside.
   *
   * @returns {Chunk}
   */
  cancelled() {
    const text = this.#rest();
    this.#count(0);
    return {
      text,
      token: null,
      logprob: null,
      top_logprobs: [],
      finish_reason: "cancelled",
      stopped_by: null,
      statistics: this.#statistics,
    };
  }

  /**
   * Puts into the statistics what came since the last time.
   *
   * @param {number} tokens
   */
  #count(tokens) {
    const soFar = this.#statistics;
    const time = soFar.tokens > 0 ? "decode_s" : "prefill_s";
    this.#statistics = Object.freeze({ ...soFar, tokens: soFar.tokens + tokens, [time]: soFar[time] + this.#spent_s });
    this.#spent_s = 0;
  }

  /** What was held back; a stop string may still be found in it. */
  #rest() {
    const held = this.#stops.push(this.#text.flush());
    return held + this.#stops.flush();
  }
}

/**
 * Drives a generation over a session's `feed`.
 *
 * Cancelling is noticed between two feeds; whoever cancels also interrupts the session, to end the one that runs.
 *
 * @param {Generation} generation
 * @param {(tokens: readonly number[]) => Promise<ArrayLogits>} feed
 * @param {Iterable<readonly number[]>} pieces the prompt, cut into what is fed at once
 * @param {{readonly aborted: boolean} | null} [cancel] such as an AbortSignal
 * @returns {AsyncGenerator<Chunk, void, void>}
 */
export async function* run(generation, feed, pieces, cancel = null) {
  /** @param {readonly number[]} tokens */
  const fed = async (tokens) => {
    if (cancel?.aborted) throw new Interrupted();
    const started = performance.now();
    try {
      return await feed(tokens);
    } finally {
      generation.spend(started);
    }
  };
  try {
    let row = null;
    for (const piece of pieces) row = await fed(piece);
    if (!row) throw new RangeError("the prompt has no token; expected at least one");
    while (true) {
      const chunk = generation.accept(row);
      yield chunk;
      if (chunk.finish_reason !== null || chunk.token === null) return;
      row = await fed([chunk.token]);
    }
  } catch (error) {
    if (!(error instanceof Interrupted)) throw error;
    yield generation.cancelled();
  }
}
