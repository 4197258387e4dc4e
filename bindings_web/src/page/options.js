// What a load and a reply may be asked for: every option by its name, and a request that can be posted to the worker.

import { PackageError } from "../errors.js";
import { checkedUrls } from "../libraries.js";
import { plain } from "./plain.js";

/** @import { Load, Message, Plain, Reply } from "../worker/protocol.js" */

/**
 * A text, which is continued as it stands; messages, which go through the chat template; or token ids.
 *
 * @typedef {string | readonly Message[] | readonly number[] | Uint32Array | Int32Array} Prompt
 */

/**
 * How to choose tokens, when to end, and what goes to the chat template. What is not given is the model's own default.
 *
 * @typedef {object} ReplyOptions
 * @property {number} [temperature] 0 = greedy
 * @property {number} [top_k] only the k best tokens; 0 = off
 * @property {number} [top_p] only the fewest best tokens that hold this probability; 1 = off
 * @property {number} [min_p] only tokens at least this share as probable as the best; 0 = off
 * @property {number} [typical_p] only the fewest tokens of most ordinary surprise that hold this probability; 1 = off
 * @property {number} [repetition_penalty] 1 = off
 * @property {number} [presence_penalty] 0 = off
 * @property {number} [frequency_penalty] 0 = off
 * @property {number} [no_repeat_ngram] no n-gram of N tokens occurs twice in prompt and reply; 0 = off
 * @property {Record<string, number>} [logit_bias] added to the logits, by token id; -100 to 100, -Infinity forbids
 * @property {number} [seed] same seed, same logits: same tokens
 * @property {number} [max_tokens] not given: the model's default, or what is left of the context
 * @property {string | string[]} [stop] strings that end the reply, and are not part of it
 * @property {number[]} [stop_tokens] in place of the model's own
 * @property {number} [logprobs] how many of the most probable tokens to report for each step
 * @property {boolean} [special] write special tokens, such as the marks of a tool call, into the text
 * @property {readonly Plain[]} [tools] JSON schemas, for the chat template
 * @property {readonly Plain[]} [documents] each with a "text", for templates that know them
 * @property {Plain} [variables] for the chat template, such as {enable_thinking: false}
 * @property {boolean} [continue_final_message] leave the last message open, so that the model goes on with it
 * @property {Plain} [response_format] of OpenAI's shape: what the reply has to be
 * @property {AbortSignal} [signal] ends the reply: at once while it waits, else at its next step
 */

const SAMPLING = ["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
  "frequency_penalty", "no_repeat_ngram", "logit_bias", "seed"];
const FOR_TEMPLATE = ["tools", "documents", "variables", "continue_final_message"];
const OTHERS = ["max_tokens", "stop", "stop_tokens", "logprobs", "special", "response_format"];

const OF_LOAD = ["engine", "device", "onProgress", "signal", "urls", "threads", "context", "parse_special", "worker"];

/**
 * The load that an address, which may be relative to the page, and options stand for.
 *
 * @param {string | URL} url
 * @param {import("../index.js").LoadOptions} options
 * @returns {Load}
 */
export function loadOf(url, options) {
  const { engine = "python", device = "auto", threads = 0, context = null, urls, parse_special = false } = checkedOptions(options, OF_LOAD);
  if (engine !== "python" && engine !== "javascript") {
    throw new RangeError(`engine is '${engine}'; expected 'python' or 'javascript'.`);
  }
  return plain({
    url: addressOf(url), engine, device, threads: whole("threads", threads, 0) ?? 0, context: whole("context", context, 2),
    urls: checkedUrls(urls, base()), parse_special,
  });
}

/** The address of a folder, whole. Throws PackageError where it is none. @param {string | URL} url */
export function addressOf(url) {
  try {
    return new URL(url, base()).href;
  } catch {
    throw new PackageError(`'${url}' is no address of a folder; expected one such as https://example.org/my-model/`);
  }
}

/** What addresses are relative to. */
export const base = () => globalThis.document?.baseURI ?? globalThis.location?.href;

/**
 * Options without those that are null or undefined. Throws RangeError for a name that is not known.
 *
 * @param {object | null | undefined} options @param {string[]} known
 * @returns {Record<string, any>}
 */
function checkedOptions(options, known) {
  const found = Object.entries(options ?? {}).filter(([, value]) => value !== undefined && value !== null);
  const odd = found.find(([name]) => !known.includes(name));
  if (odd) throw new RangeError(`there is no option '${odd[0]}'; expected of: ${known.join(", ")}.`);
  return Object.fromEntries(found);
}

/**
 * The request that a prompt and options stand for. What is null or undefined counts as not given. Ranges are checked
 * where they are used, by the rule; here names are, and kinds that an engine would not find fault with.
 *
 * @param {unknown} prompt text, messages or token ids
 * @param {ReplyOptions} options
 * @param {number | null} conversation
 * @returns {Reply}
 */
export function replyOf(prompt, options, conversation) {
  const given = checkedOptions(options, [...SAMPLING, ...OTHERS, ...FOR_TEMPLATE, "signal"]);
  if (!areMessages(prompt)) {
    const misplaced = FOR_TEMPLATE.find((name) => Object.hasOwn(given, name));
    if (misplaced) throw new RangeError(`'${misplaced}' goes through the chat template; give the prompt as messages.`);
  }
  if (!Number.isSafeInteger(given.seed ?? 0)) {
    throw new RangeError(`seed is ${given.seed}; expected a whole number of at most 2^53 - 1.`);
  }
  const of = (/** @type {string} */ name, /** @type {any} */ other) => given[name] ?? other;
  return plain({
    prompt: promptOf(prompt),
    sampling: Object.fromEntries(SAMPLING.filter((name) => Object.hasOwn(given, name)).map((name) => [name, given[name]])),
    max_tokens: whole("max_tokens", of("max_tokens", null), 1),
    stop: texts("stop", typeof given.stop === "string" ? [given.stop] : of("stop", [])),
    stop_tokens: given.stop_tokens === undefined ? null : tokens("stop_tokens", given.stop_tokens),
    logprobs: whole("logprobs", of("logprobs", 0), 0) ?? 0,
    special: of("special", false) === true,
    tools: objects("tools", of("tools", null)),
    documents: objects("documents", of("documents", null)),
    variables: object("variables", of("variables", {})),
    continue_final_message: of("continue_final_message", false) === true,
    response_format: given.response_format === undefined ? null : object("response_format", given.response_format),
    conversation,
  });
}

/**
 * Messages that templates can take. Which roles there are is a template's own.
 *
 * @param {unknown} messages
 * @returns {Message[]}
 */
export function messagesOf(messages) {
  if (!Array.isArray(messages) || !messages.length) {
    throw new RangeError(`messages must be a list of at least one message, found ${shown(messages)}.`);
  }
  messages.forEach((message, place) => {
    if (typeof message?.role !== "string") {
      throw new RangeError(`messages[${place}] is ${shown(message)}; expected an object with a 'role' and a 'content'.`);
    }
  });
  return messages;
}

/** @param {unknown} prompt */
const areMessages = (prompt) => Array.isArray(prompt) && prompt.length > 0 && typeof prompt[0] === "object";

/** @param {unknown} prompt @returns {Reply["prompt"]} */
function promptOf(prompt) {
  if (typeof prompt === "string") return prompt;
  if (areMessages(prompt)) return messagesOf(prompt);
  if (isList(prompt)) return tokens("the prompt", prompt);
  throw new RangeError(`the prompt is ${shown(prompt)}; expected a text, a list of messages or a list of token ids.`);
}

/** @param {string} name @param {unknown} value @param {number} least @returns {number | null} */
function whole(name, value, least) {
  if (value === null) return null;
  if (typeof value !== "number" || !Number.isSafeInteger(value) || value < least) {
    throw new RangeError(`${name} is ${shown(value)}; expected a whole number of at least ${least}.`);
  }
  return value;
}

/** @param {string} name @param {unknown} value @returns {string[]} */
function texts(name, value) {
  if (Array.isArray(value) && value.every((one) => typeof one === "string" && one)) return value;
  throw new RangeError(`${name} is ${shown(value)}; expected a text or a list of texts, none of them empty.`);
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {string} name @param {unknown} value */
function object(name, value) {
  if (isObject(value)) return value;
  throw new RangeError(`${name} is ${shown(value)}; expected an object.`);
}

/** @param {string} name @param {unknown} value */
function objects(name, value) {
  if (value === null || (Array.isArray(value) && value.every(isObject))) return value;
  throw new RangeError(`${name} is ${shown(value)}; expected a list of objects.`);
}

/** @param {any} value @returns {value is ArrayLike<any>} */
const isList = (value) => Array.isArray(value) || ArrayBuffer.isView(value);

/** @param {string} name @param {unknown} value @returns {number[]} */
function tokens(name, value) {
  const found = isList(value) ? Array.from(value, (token) => (typeof token === "bigint" ? Number(token) : token)) : [-1];
  if (found.every((token) => Number.isSafeInteger(token) && token >= 0)) return found;
  throw new RangeError(`${name} is ${shown(value)}; expected token ids, whole numbers of 0 or more.`);
}

/** @param {unknown} value */
const shown = (value) => (JSON.stringify(value) ?? String(value)).slice(0, 80);
