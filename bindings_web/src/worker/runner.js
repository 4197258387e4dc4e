// Requests on an engine, and the sequences that keep their KV for the next one: the twin of embedllm/generation/runner.py.

import { breathe } from "./yield_to_events.js";
import { ContextFull } from "../errors.js";
import { Generation, run } from "../sampling/generation.js";
import { Sampler } from "../sampling/sampler.js";
import { StopStrings, TextStream } from "../sampling/text_stream.js";

/**
 * @import { Session } from "../engine/session.js"
 * @import { Engine } from "../engine/engine.js"
 * @import { ImageFeatures } from "../images/features.js"
 * @import { MakeBans } from "../sampling/bans.js"
 * @import { Constraint } from "../sampling/sampler.js"
 * @import { Sampling } from "../sampling/options.js"
 * @import { TextCodec } from "../tokenizer/tokenizer.js"
 * @import { Chunk } from "./protocol.js"
 */

/**
 * One generation to run. max_tokens: null = what is left of the context. top_count: of the most probable tokens to
 * report for each step. special: special tokens are part of the text. is_continuation: the text goes on from the prompt's.
 * bans: what the model's defaults or the sampling forbid.
 *
 * @typedef {{prompt: number[], sampling: Sampling, max_tokens: number | null, stop: string[], stop_tokens: Set<number>,
 *   top_count: number, special: boolean, is_continuation: boolean, constraint: Constraint | null,
 *   bans: MakeBans | null}} Request
 */

const LARGE = 4096; // tokens; a sequence with room for more is not kept for a request that needs a quarter of it

/** A session and the tokens that it holds. */
class CachedSequence {
  /** @param {Session} session @param {number[]} [tokens] */
  constructor(session, tokens = []) {
    this.session = session;
    this.tokens = tokens;
  }

  /** @param {readonly number[]} tokens */
  async feed(tokens) {
    await breathe(); // whatever the session does: a request to cancel has to get through
    const row = await this.session.feed(tokens);
    for (const token of tokens) this.tokens.push(token);
    return row;
  }

  /**
   * Forgets all that the prompt does not begin with; how many of its tokens are held then. The last one is always fed
   * again, for its logits.
   *
   * @param {number[]} prompt @param {ImageFeatures | null} images that must not be cut, maybe
   */
  keep(prompt, images) {
    let held = 0;
    const most = Math.min(this.tokens.length, prompt.length - 1);
    while (held < most && this.tokens[held] === prompt[held]) held++;
    held = images?.startOfRun(prompt, held) ?? held;
    this.session.rewind(held);
    this.tokens.length = held;
    return held;
  }
}

/** Runs requests on an engine, one at a time: request_queue.js sees to that. */
export class Runner {
  #engine;
  #text;
  /** @type {CachedSequence | null} kept for the next request, whose prompt often begins as the last one did */
  #idle = null;
  /** @type {Map<number, CachedSequence>} */
  #conversations = new Map();

  /** @param {Engine} engine @param {TextCodec} text */
  constructor(engine, text) {
    this.#engine = engine;
    this.#text = text;
  }

  /**
   * The chunks of a request; aborting ends it with one that says "cancelled".
   *
   * Throws RangeError for a request that makes no sense, ContextFull for one that leaves no room for a token.
   *
   * @param {Request} request
   * @param {{conversation: number | null, signal: AbortSignal}} options
   * @returns {AsyncGenerator<Chunk, void, void>}
   */
  async *stream(request, { conversation, signal }) {
    this.#check(request);
    const sequence = this.#take(request, conversation);
    const interrupt = () => sequence.session.interrupt(true);
    if (signal.aborted) interrupt();
    signal.addEventListener("abort", interrupt);
    try {
      const { pieces, generation } = this.#begin(sequence, request);
      yield* run(generation, (tokens) => sequence.feed(tokens), pieces, signal);
    } finally {
      signal.removeEventListener("abort", interrupt);
      sequence.session.interrupt(false);
    }
  }

  /** The sequence of a conversation, if there is one. @param {number} conversation */
  held(conversation) {
    return this.#conversations.get(conversation) ?? null;
  }

  /** A session for a conversation; the caller puts the KV of these tokens into it. @param {number} conversation @param {number[]} tokens */
  hold(conversation, tokens) {
    const made = new CachedSequence(this.#engine.open(tokens.length), tokens);
    this.#conversations.set(conversation, made);
    return made.session;
  }

  /** Frees the KV cache of a conversation. @param {number} conversation */
  forget(conversation) {
    this.#conversations.get(conversation)?.session.close();
    this.#conversations.delete(conversation);
  }

  /** Frees the engine and every sequence. */
  close() {
    for (const { session } of [this.#idle, ...this.#conversations.values()].filter((held) => held !== null)) session.close();
    this.#idle = null;
    this.#conversations.clear();
    this.#engine.close();
  }

  /** @param {Request} request */
  #check({ prompt }) {
    const { context, remedy } = this.#engine;
    if (!prompt.length) throw new RangeError("the prompt is empty; give at least one token.");
    if (prompt.length >= context) {
      throw new ContextFull(
        `the prompt has ${prompt.length} tokens; ${context} can be held together with the reply. Shorten the prompt, or ` +
          `${remedy}.`,
        { tokens: prompt.length, limit: context },
      );
    }
  }

  /**
   * The conversation's sequence or the idle one; a new one where there is none, or it is far too large.
   *
   * @param {Request} request
   * @param {number | null} conversation
   */
  #take({ prompt, max_tokens }, conversation) {
    const needed = prompt.length + (max_tokens ?? 0);
    let used = conversation === null ? this.#idle : (this.#conversations.get(conversation) ?? null);
    if (conversation === null && used && used.session.capacity > Math.max(LARGE, 4 * needed)) {
      used.session.close();
      used = null;
    }
    used ??= new CachedSequence(this.#engine.open(prompt.length));
    if (conversation === null) this.#idle = used;
    else this.#conversations.set(conversation, used);
    return used;
  }

  /**
   * Rewinds to what the sequence shares with the prompt; the pieces that are left, and the rule.
   *
   * @param {CachedSequence} sequence
   * @param {Request} request
   */
  #begin(sequence, { prompt, sampling, max_tokens, stop, stop_tokens, top_count, special, is_continuation, constraint, bans }) {
    const { chunk, images } = this.#engine;
    const held = sequence.keep(prompt, images);
    const text = prompt.filter((token) => token < this.#engine.vocabulary); // the rest stands for images
    const sampler = new Sampler(sampling, text, { constraint: bans?.(text, constraint, sampling.no_repeat_ngram) ?? constraint });
    const room = this.#engine.context - prompt.length;
    const wanted = max_tokens ?? room + 1;
    const generation = new Generation({
      sampler,
      text: new TextStream(this.#text, { special, before: is_continuation ? text : [] }),
      stops: new StopStrings(stop),
      stopTokens: stop_tokens,
      limit: Math.min(room, wanted),
      limitReason: wanted > room ? "context" : "length",
      topCount: top_count,
      statistics: { prompt_tokens: prompt.length, cached_tokens: held },
    });
    this.#engine.draws = sampler.draws && { ...sampler.draws, left: () => generation.left };
    /** @type {number[][]} */
    const pieces = [];
    for (let at = held, end = held; at < prompt.length; at = end) {
      end = images?.endOfRun(prompt, at, chunk) ?? at + chunk;
      pieces.push(prompt.slice(at, end));
    }
    return { pieces, generation };
  }
}
