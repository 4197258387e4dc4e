// A chat that remembers its history on the page, and the KV cache of it in the worker: as embedllm/conversation.py.

import { replyOf, messagesOf } from "./options.js";

/**
 * @import { Chunk, Message, Reply } from "./messages.js"
 * @import { ReplyOptions } from "./options.js"
 */

/**
 * What a conversation begins with. messages: its history, as save() gave it.
 *
 * @typedef {{id?: string, system?: string | null, messages?: Message[], tools?: Record<string, unknown>[],
 *   variables?: Record<string, unknown>}} ConversationOptions
 */

/**
 * A conversation as plain data, which JSON can hold.
 *
 * @typedef {{id: string, messages: Message[], tools?: Record<string, unknown>[], variables?: Record<string, unknown>}} Saved
 */

/**
 * What it needs of the model.
 *
 * @typedef {{stream: (reply: Reply, signal?: AbortSignal) => AsyncGenerator<Chunk, void, void>,
 *   forget: (conversation: number) => void}} Speaker
 */

/** @type {FinalizationRegistry<() => void>} frees the KV cache of one that was dropped, not closed */
const dropped = new FinalizationRegistry((forget) => forget());
let last = 0;

/** Made by llm.conversation(). */
export class Conversation {
  #speaker;
  #key = ++last;
  #isRunning = false;
  #tools;
  #variables;

  /** @param {Speaker} speaker @param {ConversationOptions} options */
  constructor(speaker, { id, system, messages, tools, variables } = {}) {
    const history = messages?.length ? structuredClone(messagesOf(messages)) : [];
    if (system !== undefined && system !== null) {
      if (history[0]?.role === "system") {
        throw new RangeError("messages begin with the role 'system' already; leave out 'system'.");
      }
      history.unshift({ role: "system", content: system });
    }
    /** Of the page's choice, or one that no other has. */
    this.id = id ?? crypto.randomUUID();
    /** The history; it may be changed between turns, and what it no longer shares with the cache is computed again. */
    this.messages = history;
    this.#speaker = speaker;
    this.#tools = tools;
    this.#variables = variables;
    const key = this.#key;
    dropped.register(this, () => speaker.forget(key), this);
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
    if (this.#isRunning) {
      throw new RangeError("this conversation has a reply under way; finish, leave or abort it first.");
    }
    const said = typeof text === "string" ? { role: "user", content: text } : text;
    const [tools, variables] = [options.tools ?? this.#tools, options.variables ?? this.#variables];
    const reply = replyOf(messagesOf([...this.messages, said]), { ...options, tools, variables }, this.#key);
    let content = "";
    let isSaid = false;
    this.#isRunning = true;
    try {
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
      if (isSaid) this.messages.push(structuredClone(said), { role: "assistant", content });
    }
  }

  /**
   * All of it as plain data: llm.conversation() takes it, after a reload too, and computes the history once more.
   *
   * @returns {Saved}
   */
  save() {
    const saved = { id: this.id, messages: this.messages };
    if (this.#tools) Object.assign(saved, { tools: this.#tools });
    if (this.#variables) Object.assign(saved, { variables: this.#variables });
    return structuredClone(saved);
  }

  /** Frees the KV cache; the history stays, and the next turn computes it again. */
  close() {
    this.#speaker.forget(this.#key);
  }
}
