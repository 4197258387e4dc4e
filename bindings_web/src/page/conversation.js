// A chat that remembers its history on the page, and the KV cache of it in the worker: as embedllm/model/conversation.py.

import { hasImages } from "../images/parts.js";
import { postable, storable } from "../images/posting.js";
import { newId } from "./new_id.js";
import { replyOf, messagesOf } from "./options.js";
import { plain } from "./plain.js";

/**
 * @import { Chunk, Message, Params, Plain, Reply } from "../worker/protocol.js"
 * @import { ReplyOptions } from "./options.js"
 */

/**
 * What a conversation begins with. messages: its history, as save() gave it.
 *
 * @typedef {{id?: string, system?: string | null, messages?: readonly Message[], tools?: readonly Plain[],
 *   variables?: Plain}} ConversationOptions
 */

/**
 * A conversation as plain data, which JSON can hold.
 *
 * @typedef {{id: string, messages: Message[], tools?: readonly Plain[], variables?: Plain}} Saved
 */

/**
 * What it needs of the model.
 *
 * @typedef {{stream: (reply: Reply, signal?: AbortSignal) => AsyncGenerator<Chunk, void, void>, takesImages: () => boolean,
 *   forget: (conversation: number) => void, save: (params: Params["save"]) => Promise<void>,
 *   restore: (params: Params["restore"]) => Promise<Saved>}} Speaker
 */

/** @type {FinalizationRegistry<() => void>} frees the KV cache of one that was dropped, not closed */
const dropped = new FinalizationRegistry((forget) => forget());
let last = 0;

/** Made by llm.conversation() and llm.openConversation(). */
export class Conversation {
  #speaker;
  #key;
  #isRunning = false;
  #tools;
  #variables;

  /** @param {Speaker} speaker @param {ConversationOptions} options @param {number} [key] of its KV in the worker */
  constructor(speaker, { id, system, messages, tools, variables } = {}, key = ++last) {
    const history = messages?.length ? plain(messagesOf(messages)) : [];
    if (system !== undefined && system !== null) {
      if (history[0]?.role === "system") {
        throw new RangeError("messages begin with the role 'system' already; leave out 'system'.");
      }
      history.unshift({ role: "system", content: system });
    }
    /** Of the page's choice, or one that no other has. */
    this.id = id ?? newId();
    /** The history; it may be changed between turns, and what it no longer shares with the cache is computed again. */
    this.messages = history;
    this.#speaker = speaker;
    this.#key = key;
    this.#tools = tools;
    this.#variables = variables;
    dropped.register(this, () => speaker.forget(key), this);
  }

  /** One that was saved under a name. @param {Speaker} speaker @param {string} name @returns {Promise<Conversation>} */
  static async open(speaker, name) {
    const key = ++last;
    return new Conversation(speaker, await speaker.restore({ name, conversation: key }), key);
  }

  /**
   * Adds what the user says and the model's reply to the history; gives the reply, chunk by chunk.
   *
   * Of a reply that is cancelled or left early, the history gets what there was; without any text, nothing. When it
   * fails the history stays as it was.
   *
   * @param {string | Message} text what the user says, or a whole message (a tool's result, say)
   * @param {ReplyOptions} [options]
   * @returns {AsyncGenerator<Chunk, void, void>}
   */
  async *say(text, options = {}) {
    this.#checkIdle();
    let said = typeof text === "string" ? { role: "user", content: text } : plain(text);
    const [tools, variables] = [options.tools ?? this.#tools, options.variables ?? this.#variables];
    let content = "";
    let isSaid = false;
    this.#isRunning = true;
    try {
      let messages = messagesOf([...this.messages, said]);
      if (hasImages(messages)) {
        const areTaken = this.#speaker.takesImages();
        messages = await postable(messages, areTaken);
        if (areTaken) said = await storable(messages[messages.length - 1]);
      }
      const reply = replyOf(messages, { ...options, tools, variables }, this.#key);
      for await (const chunk of this.#speaker.stream(reply, options.signal)) {
        content += chunk.text;
        isSaid = content !== "" || ![null, "cancelled"].includes(chunk.finish_reason);
        yield chunk;
      }
    } catch (error) {
      isSaid = false; // the turn can be said again
      throw error;
    } finally {
      this.#isRunning = false;
      if (isSaid) this.messages.push(said, { role: "assistant", content });
    }
  }

  /**
   * All of it as plain data: llm.conversation() takes it, after a reload too, and computes the history once more.
   *
   * With a name: writes it and its KV cache into this site's storage, over the one of that name, for
   * llm.openConversation(name). Rejects with PackageError when there is no room for it; what was there before stays.
   *
   * @overload
   * @returns {Saved}
   * @overload
   * @param {string} name of at most 120 bytes
   * @returns {Promise<void>}
   * @param {string} [name]
   * @returns {Saved | Promise<void>}
   */
  save(name) {
    const given = { id: this.id, messages: this.messages };
    if (this.#tools) Object.assign(given, { tools: this.#tools });
    if (this.#variables) Object.assign(given, { variables: this.#variables });
    const saved = plain(given);
    return name === undefined ? saved : this.#write(name, saved);
  }

  /** Frees the KV cache; the history stays, and the next turn computes it again. */
  close() {
    this.#speaker.forget(this.#key);
  }

  /** @param {string} name @param {Saved} saved */
  async #write(name, saved) {
    this.#checkIdle();
    if (saved.messages.length) messagesOf(saved.messages); // what cannot be opened again
    await this.#speaker.save({ name, saved, conversation: this.#key });
  }

  #checkIdle() {
    if (!this.#isRunning) return;
    throw new RangeError("this conversation has a reply under way; finish, leave or abort it first.");
  }
}
