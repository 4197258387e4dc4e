// What goes between a page and its worker, and how errors keep their class and their fields on the way.

import { DeviceError, postedError, remadeError } from "../errors.js";

/**
 * @import { PostedError } from "../errors.js"
 * @import { Urls } from "../libraries.js"
 * @import { Saved } from "../page/conversation.js"
 * @import { Device } from "../engine/engine.js"
 * @import { Times, Untried } from "../engine/trials.js"
 */

/**
 * How far the loading of a file has come; loaded and total are bytes, total 0 where it is not known.
 *
 * @typedef {{file: string, loaded: number, total: number, phase: "download" | "check" | "stored" | "compile"}} Progress
 */

/**
 * What a generation has cost so far; times are seconds. cached_tokens: of the prompt's, held already from an earlier
 * call. tokens: generated, the stop token among them.
 *
 * @typedef {{prompt_tokens: number, cached_tokens: number, tokens: number, prefill_s: number, decode_s: number}} Statistics
 */

/**
 * One step of a reply. text: what is certain now, often empty. token: null when the reply ends without one. logprob:
 * natural logarithm, in the model's own distribution. finish_reason, in the last one: "stop", "length", "context" or
 * "cancelled". stopped_by: the stop string or the stop token.
 *
 * @typedef {{text: string, token: number | null, logprob: number | null,
 *   top_logprobs: {token: number, logprob: number}[], finish_reason: string | null,
 *   stopped_by: string | number | null, statistics: Statistics}} Chunk
 */

/** Plain data; `any` since TypeScript takes no interface for a Record<string, unknown>. @typedef {Record<string, any>} Plain */
/** @typedef {Plain & {role: string}} Message */

/**
 * One reply to make, checked by options.js. prompt: text, which is continued as it stands; messages, which go through
 * the chat template; or token ids. conversation: whose KV cache is used; null: the one that all others share.
 *
 * @typedef {{prompt: string | number[] | readonly Message[], sampling: Record<string, unknown>, max_tokens: number | null,
 *   stop: string[], stop_tokens: number[] | null, logprobs: number, special: boolean,
 *   tools: readonly Plain[] | null, documents: readonly Plain[] | null,
 *   variables: Plain, continue_final_message: boolean,
 *   response_format: Plain | null, conversation: number | null}} Reply
 */

/** @typedef {"python" | "javascript"} EngineName */
/**
 * @typedef {{url: string, engine: EngineName, device: string | string[], threads: number, context: number | null, urls: Urls,
 *   parse_special: boolean}} Load context: null for all that the model holds
 */

/**
 * A loaded model. refused: devices that were passed over, with their reasons. takesImages: of the model and the engine.
 * untried: a trial of devices is missing, which the page may do.
 *
 * @typedef {{name: string, device: Device, refused: Device[], context: number, canChat: boolean, takesImages: boolean,
 *   untried: Untried | null}} About
 */

/**
 * What a page asks, each with an `id` of its own, or {cancel: id}. Requests of a model take turns; the others do not. link:
 * whoever loads a model in this worker; other requests are for the model that their link loaded.
 *
 * @typedef {{load: Load, reply: Reply, save: {conversation: number, name: string, saved: Saved},
 *   restore: {conversation: number, name: string}, forget: {conversation: number}, unload: {}, devices: {urls: Urls},
 *   list: {urls: Urls}, remove: {urls: Urls, url: string}, usage: {urls: Urls}, listConversations: {},
 *   removeConversation: {name: string}, rememberTrial: Untried & {times: Times}}} Params
 * @typedef {{id: number, link: number, method: keyof Params, params: any} | {cancel: number}} ToWorker
 */

/**
 * What a worker answers. started: its turn has come. lost: the device failed, and the model of the link with it. life: of worker_liveness.js.
 *
 * @typedef {{id: number, result: unknown} | {id: number, error: Posted} | {id: number, started: true}
 *   | {id: number, chunk: Chunk} | {id: number, progress: Progress} | {lost: Posted, link: number}
 *   | {life: string}} ToPage
 * @typedef {PostedError & {lost?: boolean}} Posted
 */

/**
 * Either end of what they go through: a Worker, the inside of one, a MessagePort.
 *
 * @typedef {{postMessage: (message: any) => void,
 *   addEventListener: (kind: any, listener: (event: any) => void, options?: {signal?: AbortSignal}) => void,
 *   start?: () => void, terminate?: () => void, close?: () => void}} Port
 */

/**
 * An error as it is posted. isLost: the model is gone with it.
 *
 * @param {unknown} error @param {boolean} [isLost]
 * @returns {Posted}
 */
export function posted(error, isLost = false) {
  if (error instanceof DOMException) return { name: error.name, message: error.message };
  const found = postedError(error);
  return isLost || /** @type {{lost?: boolean}} */ (error)?.lost ? { ...found, lost: true } : found;
}

/**
 * The error that posted() was given.
 *
 * @param {Posted} found
 * @returns {Error}
 */
export function remade(found) {
  if (found.name === "AbortError") return new DOMException(found.message, found.name);
  const error = remadeError(found);
  return found.lost ? Object.assign(error, { lost: true }) : error;
}

/**
 * The error of a request whose model is gone.
 *
 * @param {string} message
 * @param {unknown} [cause]
 * @returns {DeviceError & {lost: true}}
 */
export function lostError(message, cause) {
  return Object.assign(new DeviceError(message, { cause }), { lost: /** @type {const} */ (true) });
}

/** The last chunk of a reply that was cancelled before its turn came. @returns {Chunk} */
export function cancelledChunk() {
  const statistics = { prompt_tokens: 0, cached_tokens: 0, tokens: 0, prefill_s: 0, decode_s: 0 };
  const nothing = { text: "", token: null, logprob: null, top_logprobs: [], stopped_by: null };
  return { ...nothing, finish_reason: "cancelled", statistics };
}
