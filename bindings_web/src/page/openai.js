// llm.chat.completions.create(): requests and answers in the shapes of OpenAI's API.

import { isImagePart } from "../images/parts.js";
import { newId } from "./new_id.js";

/**
 * @import { Chunk, Message, Plain, Statistics } from "../worker/protocol.js"
 * @import { ReplyOptions } from "./options.js"
 */

/**
 * @typedef {object} CompletionRequest
 * @property {readonly Message[]} messages contents: texts, or parts of the types "text" and "image_url"
 * @property {boolean | null} [stream]
 * @property {{include_usage?: boolean} | null} [stream_options]
 * @property {string} [model] any; it is the one that is loaded
 * @property {1 | null} [n]
 * @property {number | null} [max_completion_tokens]
 * @property {number | null} [max_tokens]
 * @property {string | string[] | null} [stop]
 * @property {number | null} [temperature]
 * @property {number | null} [top_p]
 * @property {number | null} [presence_penalty]
 * @property {number | null} [frequency_penalty]
 * @property {Record<string, number> | null} [logit_bias]
 * @property {number | null} [seed]
 * @property {Plain | null} [response_format]
 * @property {unknown[] | null} [tools] none; as what follows, for clients that send it
 * @property {"none" | "auto" | null} [tool_choice]
 * @property {boolean | null} [parallel_tool_calls]
 * @property {false | null} [logprobs]
 * @property {0 | null} [top_logprobs]
 * @property {string[] | null} [modalities] text
 * @property {string} [user] this and what follows has no effect
 * @property {Record<string, string> | null} [metadata]
 * @property {boolean | null} [store]
 * @property {string} [safety_identifier]
 * @property {string} [prompt_cache_key]
 * @property {string | null} [prompt_cache_retention]
 * @property {string | null} [service_tier]
 * @property {string | null} [verbosity]
 * @property {number} [top_k] this and what follows is not OpenAI's
 * @property {number} [min_p]
 * @property {number} [typical_p]
 * @property {number} [repetition_penalty]
 * @property {Plain} [variables]
 */

/**
 * @typedef {{prompt_tokens: number, completion_tokens: number, total_tokens: number,
 *   prompt_tokens_details: {cached_tokens: number}}} Usage
 * @typedef {{id: string, object: "chat.completion", created: number, model: string, choices: [{index: 0,
 *   message: {role: "assistant", content: string, refusal: null}, logprobs: null, finish_reason: "stop" | "length"}],
 *   usage: Usage}} Completion
 * @typedef {{index: 0, delta: {role?: "assistant", content?: string}, logprobs: null,
 *   finish_reason: "stop" | "length" | null}} Delta
 * @typedef {{id: string, object: "chat.completion.chunk", created: number, model: string, choices: Delta[],
 *   usage?: Usage | null}} CompletionChunk
 */

/** What is passed on as it is. */
const SAME = ["temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop",
  "response_format", "top_k", "min_p", "typical_p", "repetition_penalty", "variables"];
const OWN = ["messages", "model", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens"];
const INSTEAD = "llm.chat(messages, {tools}) gives the text that the model writes";
const UNFOLLOWED = ["user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
  "service_tier", "verbosity"]; // as UNFOLLOWED in embedllm/openai/parameters.py: for the books of a service
/** @type {Record<string, (value: any) => boolean>} whether a value asks for nothing */
const OFF = {
  tools: (value) => Array.isArray(value) && !value.length,
  tool_choice: (value) => value === "none" || value === "auto", // of tools that are not there
  parallel_tool_calls: (value) => typeof value === "boolean",
  logprobs: (value) => value === false,
  top_logprobs: (value) => value === 0,
  modalities: (value) => String(value) === "text",
};
/** @type {Record<string, string>} what is known but not done, and why */
const REFUSED = {
  tools: `replies are not read for tool calls; ${INSTEAD}`,
  tool_choice: `replies are not read for tool calls; ${INSTEAD}`,
  logprobs: "llm.chat(messages, {logprobs}) gives them by token id",
  top_logprobs: "llm.chat(messages, {logprobs}) gives them by token id",
};

export class Completions {
  #model;

  /** @param {{name: () => string, chat: (messages: readonly Message[], options?: ReplyOptions) => AsyncIterable<Chunk>}} model */
  constructor(model) {
    this.#model = model;
  }

  /**
   * A reply to a conversation, whole or, with `stream`, in pieces. Aborting throws the signal's reason.
   *
   * @overload
   * @param {CompletionRequest & {stream: true}} request
   * @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<AsyncGenerator<CompletionChunk, void, void>>}
   */
  /**
   * @overload
   * @param {CompletionRequest & {stream?: false | null}} request
   * @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<Completion>}
   */
  /**
   * @overload
   * @param {CompletionRequest} request
   * @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<Completion | AsyncGenerator<CompletionChunk, void, void>>}
   */
  /**
   * @param {CompletionRequest} request
   * @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<Completion | AsyncGenerator<CompletionChunk, void, void>>}
   */
  async create(request, { signal } = {}) {
    const { messages, options } = translated(request);
    const chunks = throwingWhenAborted(this.#model.chat(messages, { ...options, signal }), signal);
    const created = Math.floor(Date.now() / 1000);
    const head = { id: `chatcmpl-${newId()}`, created, model: this.#model.name() };
    if (request.stream) return deltas(chunks, head, request.stream_options?.include_usage === true);
    let content = "";
    /** @type {Chunk | undefined} */
    let last;
    for await (last of chunks) content += last.text;
    const { finish_reason, statistics } = /** @type {Chunk} */ (last);
    const message = { role: /** @type {const} */ ("assistant"), content, refusal: null };
    const choice = { index: /** @type {const} */ (0), message, logprobs: null, finish_reason: reason(finish_reason) ?? "stop" };
    return { ...head, object: "chat.completion", choices: [choice], usage: usage(statistics) };
  }
}

/** @param {CompletionRequest} request @returns {{messages: readonly Message[], options: ReplyOptions}} */
function translated(request) {
  /** @type {Record<string, any>} */
  const given = Object.fromEntries(Object.entries(request).filter(([name, value]) =>
    value !== null && value !== undefined && !UNFOLLOWED.includes(name) &&
    !(Object.hasOwn(OFF, name) && OFF[name](value))));
  for (const name of Object.keys(given)) {
    if (Object.hasOwn(REFUSED, name)) throw new RangeError(`'${name}' is not done here: ${REFUSED[name]}.`);
    if (![...OWN, ...SAME].includes(name)) {
      throw new RangeError(`there is no parameter '${name}'; expected of: ${[...OWN, ...SAME].join(", ")}.`);
    }
  }
  if (given.n !== undefined && given.n !== 1) throw new RangeError(`n is ${given.n}; expected 1. Ask once for each reply.`);
  const odd = Object.keys(given.stream_options ?? {}).find((name) => name !== "include_usage");
  if (odd) throw new RangeError(`stream_options has '${odd}'; expected only: include_usage.`);
  const { max_tokens, max_completion_tokens = max_tokens } = given;
  const same = SAME.filter((name) => Object.hasOwn(given, name)).map((name) => [name, given[name]]);
  const options = { ...Object.fromEntries(same), max_tokens: max_completion_tokens };
  const messages = Array.isArray(given.messages) ? given.messages.map(plain) : given.messages;
  return { messages, options };
}

/** A message whose content is one text, if it has no image. @param {any} message @param {number} place */
function plain(message, place) {
  if (!Array.isArray(message?.content)) return message;
  const odd = message.content.find((/** @type {any} */ part) => part?.type !== "text" && !isImagePart(part));
  if (odd) throw new RangeError(`messages[${place}] has a part of the type '${odd?.type}'; expected: text, image_url.`);
  if (message.content.some(isImagePart)) return message;
  return { ...message, content: message.content.map((/** @type {any} */ part) => part.text).join("") };
}

/**
 * @param {AsyncIterable<Chunk>} chunks
 * @param {{id: string, created: number, model: string}} head
 * @param {boolean} isCounting
 * @returns {AsyncGenerator<CompletionChunk, void, void>}
 */
async function* deltas(chunks, head, isCounting) {
  /** @param {Delta["delta"]} delta @param {Delta["finish_reason"]} finish_reason @returns {CompletionChunk} */
  const made = (delta, finish_reason = null) => ({
    ...head,
    object: "chat.completion.chunk",
    choices: [{ index: 0, delta, logprobs: null, finish_reason }],
    ...(isCounting ? { usage: null } : {}),
  });
  yield made({ role: "assistant", content: "" });
  for await (const { text, finish_reason, statistics } of chunks) {
    if (text) yield made({ content: text });
    if (finish_reason === null) continue;
    yield made({}, reason(finish_reason));
    if (isCounting) yield { ...head, object: "chat.completion.chunk", choices: [], usage: usage(statistics) };
  }
}

/**
 * OpenAI's word for why a reply ended: a full context is a length.
 *
 * @param {string | null} finish_reason
 * @returns {"stop" | "length" | null}
 */
function reason(finish_reason) {
  if (finish_reason === null) return null;
  return finish_reason === "stop" ? "stop" : "length";
}

/** @param {Statistics} statistics @returns {Usage} */
function usage({ prompt_tokens, cached_tokens, tokens }) {
  return {
    prompt_tokens,
    completion_tokens: tokens,
    total_tokens: prompt_tokens + tokens,
    prompt_tokens_details: { cached_tokens },
  };
}

/**
 * These shapes have no word for a reply that was cancelled.
 *
 * @param {AsyncIterable<Chunk>} chunks
 * @param {AbortSignal} [signal]
 */
async function* throwingWhenAborted(chunks, signal) {
  const cancelled = () => signal?.reason ?? new DOMException("The reply was cancelled.", "AbortError");
  for await (const chunk of chunks) {
    if (chunk.finish_reason === "cancelled") throw cancelled();
    yield chunk;
  }
}
