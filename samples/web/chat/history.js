// Chats, kept in this browser: IndexedDB, a record of the messages of each, and one of its draft.

import { partsOf } from "./images.js";

/**
 * draft: what was sent and not answered yet, or is being written; images: of the draft, as data URLs.
 *
 * @typedef {string | ({type: "text", text: string} | import("./images.js").ImagePart)[]} Content
 * @typedef {{role: string, content: Content}} Message
 * @typedef {{id: string, changed: number, messages: Message[], draft: string, images?: string[]}} Chat
 */

const CHATS = "chats";
const DRAFTS = "drafts"; // apart: a draft is written at once, whatever another tab has made of the messages

/** @returns {Promise<IDBDatabase>} */
function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("embedllm-chat", 2);
    request.onupgradeneeded = () => {
      const { result } = request;
      for (const name of [CHATS, DRAFTS]) {
        if (!result.objectStoreNames.contains(name)) result.createObjectStore(name, { keyPath: "id" });
      }
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close(); // another tab has a newer page
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
}

/** Where nothing may be stored, chats last as long as the page. Several tabs may have the same chat open. */
export class History {
  /** @type {IDBDatabase | null} */
  #database = null;
  /** The messages of chats as this page read or wrote them last. @type {WeakMap<Chat, Message[]>} */
  #known = new WeakMap();

  static async open() {
    const history = new History();
    history.#database = await open().catch(() => null);
    return history;
  }

  get isKept() {
    return this.#database !== null;
  }

  /** Last changed first. @returns {Promise<Chat[]>} */
  async list() {
    const all = await this.#ask("readonly", (chats, drafts) => [chats.getAll(), drafts.getAll()]);
    const [chats, drafts] = all?.map(({ result }) => result) ?? [[], []];
    /** @type {Map<string, Chat>} */
    const found = new Map(chats.map((/** @type {Chat} */ chat) => [chat.id, { ...chat, draft: chat.draft ?? "" }]));
    for (const draft of drafts) found.set(draft.id, { messages: [], ...found.get(draft.id), ...draft });
    for (const chat of found.values()) this.#known.set(chat, chat.messages);
    return [...found.values()].sort((one, other) => other.changed - one.changed);
  }

  /**
   * Writes down the draft of a chat, and what was said since. Whether another tab has said something in the meantime: then
   * the chat becomes one of its own, with another id, and nothing is lost.
   *
   * @param {Chat} chat
   */
  async keep(chat) {
    const { id, changed, messages, draft, images = [] } = chat;
    const known = this.#known.get(chat) ?? [];
    /** @param {IDBObjectStore} drafts @param {string} id */
    const putDraft = (drafts, id) => drafts.put({ id, changed, draft, images: [...images] });
    if (!messages.length || messages === known) {
      const isEmpty = !draft && !images.length && !messages.length;
      await this.#ask("readwrite", (_, drafts) => (isEmpty ? drafts.delete(id) : putDraft(drafts, id)));
      return false;
    }
    const compareAndPut = (/** @type {IDBObjectStore} */ chats, /** @type {IDBObjectStore} */ drafts) => {
      const stored = chats.get(id);
      stored.onsuccess = () => {
        if (stored.result && !isSame(stored.result.messages, known)) chat.id = newId();
        chats.put(structuredClone({ id: chat.id, changed, messages }));
        putDraft(drafts, chat.id);
      };
    };
    await this.#ask("readwrite", compareAndPut, { isAll: false });
    this.#known.set(chat, messages);
    return chat.id !== id;
  }

  /** Takes over what another tab has said in a chat. Whether it has. @param {Chat} chat */
  async update(chat) {
    const stored = (await this.#ask("readonly", (chats) => chats.get(chat.id)))?.result;
    if (!stored || isSame(stored.messages, this.#known.get(chat) ?? [])) return false;
    chat.messages = stored.messages;
    this.#known.set(chat, chat.messages);
    return true;
  }

  /** @param {string} id */
  async remove(id) {
    await this.#ask("readwrite", (chats, drafts) => [chats.delete(id), drafts.delete(id)]);
  }

  /**
   * What work returns, when all that it asked for is done; null where nothing is kept. isAll: it asks for nothing later.
   *
   * @template T @param {IDBTransactionMode} mode @param {(chats: IDBObjectStore, drafts: IDBObjectStore) => T} work
   * @returns {Promise<T | null>}
   */
  #ask(mode, work, { isAll = true } = {}) {
    const database = this.#database;
    if (!database) return Promise.resolve(null);
    return new Promise((resolve, reject) => {
      const transaction = database.transaction([CHATS, DRAFTS], mode);
      const asked = work(transaction.objectStore(CHATS), transaction.objectStore(DRAFTS));
      if (isAll) transaction.commit(); // at once: what waits for this page's next turn is undone when the page is left
      transaction.oncomplete = () => resolve(asked);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  }
}

/** @param {Message[]} one @param {Message[]} other */
const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** Pages that came over plain http have no randomUUID. */
const newId = () => crypto.randomUUID?.() ?? crypto.getRandomValues(new Uint32Array(4)).join("-");

/** @returns {Chat} */
export function newChat() {
  return { id: newId(), changed: Date.now(), messages: [], draft: "" };
}

/** @param {Chat} chat */
export function titleOf({ messages, draft }) {
  const { text, urls } = partsOf(messages.find(({ role }) => role === "user")?.content ?? draft);
  const line = text.trim().split("\n", 1)[0] || (urls.length ? "Image" : "");
  return line.length > 40 ? `${line.slice(0, 40)}…` : line || "New chat";
}

/** Hands a chat to the user as a file. @param {Chat} chat @param {string} model */
export function exportChat(chat, model) {
  const { id, changed, messages } = chat;
  const text = JSON.stringify({ id, changed: new Date(changed).toISOString(), model, messages }, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `chat-${new Date(changed).toISOString().slice(0, 10)}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}
