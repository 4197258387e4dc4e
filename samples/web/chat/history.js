// Chats, kept in this browser: IndexedDB, one record a chat, written whole.

import { partsOf } from "./images.js";

/**
 * draft: what was sent and not answered yet, or is being written; images: of the draft, as data URLs.
 *
 * @typedef {string | ({type: "text", text: string} | import("./images.js").ImagePart)[]} Content
 * @typedef {{role: string, content: Content}} Message
 * @typedef {{id: string, changed: number, messages: Message[], draft: string, images?: string[]}} Chat
 */

const STORE = "chats";

/** @returns {Promise<IDBDatabase>} */
function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("embedllm-chat", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close(); // another tab has a newer page
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
}

/** Where nothing may be stored, chats last as long as the page. */
export class History {
  /** @type {IDBDatabase | null} */
  #database = null;

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
    const found = /** @type {Chat[]} */ ((await this.#ask("readonly", (store) => store.getAll())) ?? []);
    return found.sort((one, other) => other.changed - one.changed);
  }

  /** @param {Chat} chat */
  async keep(chat) {
    await this.#ask("readwrite", (store) => store.put(structuredClone(chat)));
  }

  /** @param {string} id */
  async remove(id) {
    await this.#ask("readwrite", (store) => store.delete(id));
  }

  /** @param {IDBTransactionMode} mode @param {(store: IDBObjectStore) => IDBRequest} work @returns {Promise<unknown>} */
  #ask(mode, work) {
    const database = this.#database;
    if (!database) return Promise.resolve(null);
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = work(transaction.objectStore(STORE));
      transaction.commit(); // at once: what waits for this page's next turn is undone when the page is left
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  }
}

/** @returns {Chat} */
export function newChat() {
  return { id: crypto.randomUUID(), changed: Date.now(), messages: [], draft: "" };
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
