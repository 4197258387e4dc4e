// embedllm in a page: a model in a worker of its own, which answers in chunks.

import { collected } from "./page/completion.js";
import { cache, conversations, devices } from "./page/site_queries.js";
import { Conversation } from "./page/conversation.js";
import { Link } from "./page/worker_client.js";
import { lostError, cancelledChunk } from "./worker/protocol.js";
import { hasImages } from "./images/parts.js";
import { postable } from "./images/posting.js";
import { loadOf, messagesOf, replyOf } from "./page/options.js";
import { start } from "./page/create_worker.js";

export * from "./errors.js";
export { Conversation };

/**
 * @import { About, EngineName, Load, Reply } from "./worker/protocol.js"
 * @import { Completions } from "./page/openai.js"
 * @import { Placed } from "./page/create_worker.js"
 */

/**
 * What an application names in its own types; the package has no other entry to import them from.
 *
 * @typedef {import("./page/completion.js").Answer} Answer
 * @typedef {import("./worker/protocol.js").Chunk} Chunk
 * @typedef {import("./page/openai.js").Completion} Completion
 * @typedef {import("./page/openai.js").CompletionChunk} CompletionChunk
 * @typedef {import("./page/openai.js").CompletionRequest} CompletionRequest
 * @typedef {import("./page/conversation.js").ConversationOptions} ConversationOptions
 * @typedef {import("./engine/engine.js").Device} Device
 * @typedef {import("./worker/protocol.js").Message} Message
 * @typedef {import("./worker/protocol.js").Progress} Progress
 * @typedef {import("./page/options.js").Prompt} Prompt
 * @typedef {import("./page/options.js").ReplyOptions} ReplyOptions
 * @typedef {import("./page/conversation.js").Saved} Saved
 * @typedef {import("./worker/protocol.js").Statistics} Statistics
 * @typedef {import("./libraries.js").Urls} Urls
 */

/**
 * engine: "python" runs embedllm's own rule in Pyodide, "javascript" the twin of it, which gives the same tokens and is
 * loaded faster. device: a name of EmbedLLM.devices(), "auto", or names that are tried in order. threads: of "wasm"; 0 =
 * what ONNX Runtime takes. context: most tokens of a prompt and its reply together, which bounds the memory of KV caches;
 * by default all that the model holds. parse_special: special tokens' texts in messages, tools and documents are read as
 * these tokens; by default they are text.
 *
 * @typedef {Placed & {engine?: EngineName, device?: string | string[], threads?: number, context?: number,
 *   parse_special?: boolean, onProgress?: (progress: Progress) => void, signal?: AbortSignal}} LoadOptions
 */

/** A loaded model. Its requests take turns; 16 may wait. When its worker or device is lost, the next one loads it again. */
export class EmbedLLM {
  /** @type {Link | null} */
  #link = null;
  /** @type {Promise<Link> | null} */
  #starting = null;
  /** @type {Error | null} why there is no link */
  #lost = null;
  #hasRestarted = false; // since the last reply that came to its end
  #isClosed = false;
  /** @type {import("./page/trial.js").Trial | null} */
  #trial = null;
  #replies = 0; // that run or wait
  #load;
  #options;
  /** @type {About} */
  #about = /** @type {any} */ (null);

  /** @type {import("./page/conversation.js").Speaker} */
  #speaker = {
    stream: (reply, signal) => this.#stream(reply, signal),
    takesImages: () => this.takesImages,
    forget: (conversation) => this.#link?.tell("forget", { conversation }),
    save: async (params) => (this.#link ?? (await this.#restarted())).call("save", params),
    restore: async (params) => (this.#link ?? (await this.#restarted())).call("restore", params),
  };

  /** Use EmbedLLM.load(). @param {Load} load @param {LoadOptions} options */
  constructor(load, options) {
    this.#load = load;
    this.#options = options;
    /** @param {readonly Message[]} messages @param {ReplyOptions} [options] */
    const chat = (messages, options) => this.#chat(messages, options);
    const create = async (/** @type {any} */ request, /** @type {{signal?: AbortSignal}} */ options) => {
      const { Completions } = await import("./page/openai.js"); // most pages have no use for it
      return new Completions({ name: () => this.name, chat }).create(request, options);
    };
    const completions = /** @type {Pick<Completions, "create">} */ ({ create });
    /**
     * The reply to messages, chunk by chunk; chat.completions.create() has it in OpenAI's shapes. Leaving the loop early
     * cancels it.
     */
    this.chat = Object.assign(chat, { completions });
  }

  /**
   * Loads the package folder at an address: from the server the first time, from this browser later, offline too.
   *
   * Rejects with PackageError, DeviceUnavailable, or the signal's reason; with RangeError for an option that is not known, or a
   * context that is larger than the model's.
   *
   * @param {string | URL} url may be relative to the page
   * @param {LoadOptions} [options]
   * @returns {Promise<EmbedLLM>}
   */
  static async load(url, options = {}) {
    const llm = new EmbedLLM(loadOf(url, options), options);
    llm.#link = await llm.#open(options.signal);
    return llm;
  }

  /** What this browser offers, and why the rest is not available. */
  static devices = devices;
  static cache = cache;
  static conversations = conversations;

  /** Of the folder. */
  get name() {
    return this.#about.name;
  }

  /** The one that computes. */
  get device() {
    return this.#about.device;
  }

  /** Devices that were passed over, each with the reason. */
  get refused() {
    return this.#about.refused;
  }

  /** The most tokens that prompt and reply can have together. */
  get context() {
    return this.#about.context;
  }

  /** Whether the model has a chat template. */
  get canChat() {
    return this.#about.canChat;
  }

  /** Whether messages may have images: the model is a vision-language model whose encoder runs in a page. */
  get takesImages() {
    return this.#about.takesImages;
  }

  /**
   * The continuation of a prompt, whole: of a text as it stands, of messages through the chat template, or of token ids.
   *
   * @param {Prompt} prompt
   * @param {ReplyOptions} [options]
   * @returns {Promise<Answer>}
   */
  async generate(prompt, options = {}) {
    return collected(this.stream(prompt, options));
  }

  /** As generate(), chunk by chunk. @param {Prompt} prompt @param {ReplyOptions} [options] */
  async *stream(prompt, options = {}) {
    const posted = hasImages(prompt) ? await postable(prompt, this.takesImages) : prompt;
    yield* this.#stream(replyOf(posted, options, null), options.signal);
  }

  /** A chat that remembers. @param {ConversationOptions} [options] its beginning, or what save() gave */
  conversation(options = {}) {
    return new Conversation(this.#speaker, options);
  }

  /**
   * The conversation that save(name) wrote. Its next turn computes nothing of what it held then, on the same model and
   * device; elsewhere the history is computed again, which the console is told.
   *
   * Rejects with RangeError when there is none of that name, EmbedError when its messages are damaged.
   *
   * @param {string} name
   * @returns {Promise<Conversation>}
   */
  openConversation(name) {
    return Conversation.open(this.#speaker, name);
  }

  /** Frees the model; what is under way is rejected. Twice is fine. */
  close() {
    this.#isClosed = true;
    this.#end(new RangeError("this model was closed"));
  }

  /** @param {readonly Message[]} messages @param {ReplyOptions} [options] */
  async *#chat(messages, options = {}) {
    yield* this.stream(messagesOf(messages), options);
  }

  /** @param {Reply} reply @param {AbortSignal} [signal] @returns {AsyncGenerator<Chunk, void, void>} */
  async *#stream(reply, signal) {
    const link = this.#link ?? (await orAborted(this.#restarted(), signal));
    if (link === null) return yield cancelledChunk();
    this.#replies++;
    this.#trial?.pause();
    try {
      for await (const chunk of link.stream(reply, signal)) {
        if (chunk.finish_reason !== null && chunk.finish_reason !== "cancelled") this.#hasRestarted = false;
        yield chunk;
      }
    } finally {
      if (!--this.#replies) this.#trial?.resume();
    }
  }

  /** A new worker with the model in it, once. @returns {Promise<Link>} */
  #restarted() {
    if (this.#starting) return this.#starting;
    const lost = /** @type {Error} */ (this.#lost);
    if (this.#hasRestarted || this.#isClosed) return Promise.reject(lost);
    this.#hasRestarted = true;
    this.#starting = this.#open().then(
      (link) => (this.#link = link),
      (error) => {
        this.#lost = error;
        throw error;
      },
    );
    return this.#starting.finally(() => (this.#starting = null));
  }

  /** @param {AbortSignal} [signal] @returns {Promise<Link>} */
  async #open(signal) {
    const link = start(this.#options, (error) => this.#lose(link, error));
    try {
      this.#about = await link.call("load", this.#load, { signal, onProgress: this.#options.onProgress });
    } catch (error) {
      link.close(lostError("the model was not loaded", error));
      throw error;
    }
    if (this.#isClosed) {
      link.tell("unload", {}); // meanwhile; of a worker that goes on
      link.close(/** @type {Error} */ (this.#lost));
    } else if (this.#about.untried && typeof this.#options.worker !== "object") void this.#prepareTrial(link, this.#about.untried);
    return link;
  }

  /** Waits for a pause after a reply. @param {Link} link @param {import("./engine/trials.js").Untried} untried */
  async #prepareTrial(link, untried) {
    const { Trial } = await import("./page/trial.js");
    this.#trial = new Trial(link, this.#load, this.#options, untried);
  }

  /** @param {Link} link @param {Error} error */
  #lose(link, error) {
    if (this.#link !== link) return;
    if (link.isDead && typeof this.#options.worker === "object") this.#hasRestarted = true; // only the page makes another
    this.#end(error);
  }

  /** @param {Error} error */
  #end(error) {
    this.#lost = error;
    this.#trial?.pause();
    this.#trial = null;
    this.#link?.tell("unload", {}); // of a worker that goes on
    this.#link?.close(error);
    this.#link = null;
  }
}

/**
 * What a promise gives; null when the signal comes first.
 *
 * @template T
 * @param {Promise<T>} promise
 * @param {AbortSignal} [signal]
 * @returns {Promise<T | null>}
 */
function orAborted(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    promise.then(resolve, reject);
    if (signal.aborted) resolve(null);
    signal.addEventListener("abort", () => resolve(null), { once: true });
  });
}
