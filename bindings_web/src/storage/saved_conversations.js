// Conversations under a name in this site's folder: their messages, and the KV cache that was computed for them.
//
// A file is the length of its record (4 bytes), the record's sha256 (32), the record in JSON, then the KV.

import { openPlace } from "./opfs.js";
import { EmbedError } from "../errors.js";
import { ifFree, locked } from "./locks.js";
import { roomFor } from "./room_for.js";

/**
 * What a KV cache is of; it is worth nothing to one that differs. weights, graph: their sha256; type: of its numbers.
 *
 * @typedef {{weights: string, graph: string, context: number, device: string, type: string}} Kind
 * @typedef {{saved: import("../page/conversation.js").Saved, tokens: number[], state: Uint8Array[]}} Kept  state: the KV of
 *   the tokens, as Session.exportState() gives it
 * @typedef {{name: string, bytes: number, lastSaved: number}} ListedConversation  lastSaved: ms since 1970
 */

const FORMAT = 1; // of the record; a later one is refused
const PREFIX = 36; // bytes before the record
const LONGEST = 120; // bytes of a name; its file's name has twice as many letters, of 255

/** Conversations that are kept on disk. Works only in a worker. */
export class SavedConversations {
  #place;
  #reason;

  /** Use SavedConversations.open(). @param {import("./opfs.js").Place} place @param {string} reason why it is no disk */
  constructor(place, reason) {
    this.#place = place;
    this.#reason = reason;
  }

  static async open() {
    const { place, reason } = await openPlace("conversations");
    return new SavedConversations(place, reason);
  }

  /**
   * Writes one, whole or not at all, over the one of that name. Throws PackageError when there is no room for it.
   *
   * @param {string} name @param {Kept & {kind: Kind}} kept
   */
  save(name, { saved, kind, tokens, state }) {
    if (!this.#place.isDisk) throw new EmbedError(`conversations cannot be stored here (${this.#reason}).`);
    return alone(name, async (key) => {
      const about = { format: FORMAT, saved, kind, tokens, sizes: state.map(({ length }) => length), sha256: await sum(state) };
      const record = new TextEncoder().encode(JSON.stringify(about));
      const prefix = new Uint8Array(PREFIX);
      new DataView(prefix.buffer).setUint32(0, record.length);
      prefix.set(await sha256(record), 4);
      await this.#write(name, key, [prefix, record, ...state]);
    });
  }

  /**
   * One that was saved; without tokens when its KV is damaged or of another kind, which the console is told.
   *
   * Throws RangeError when there is none, EmbedError when its messages cannot be read.
   *
   * @param {string} name @param {Kind} kind @returns {Promise<Kept>}
   */
  read(name, kind) {
    return alone(name, async (key) => {
      const file = await this.#place.file(key);
      if (!file) {
        const names = (await this.list()).map((one) => `'${one.name}'`).join(", ");
        throw new RangeError(`there is no saved conversation '${name}'; saved are: ${names || "none"}.`);
      }
      const { record, end } = await readRecord(name, file);
      const { saved, tokens, sizes } = record;
      let fault = kindFault(record.kind, kind) || lengthFault(tokens.length, kind);
      if (!tokens.length) return { saved, tokens, state: [] };
      /** @type {Uint8Array[]} */
      const state = [];
      let at = end;
      for (const size of fault ? [] : sizes) state.push(await bytesOf(file, at, (at += size)));
      if (!fault && (at !== file.size || (await sum(state)) !== record.sha256)) fault = "it is damaged";
      if (!fault) return { saved, tokens, state };
      console.warn(`embedllm: the KV cache of the conversation '${name}' is not used, because ${fault}; it is computed again.`);
      return { saved, tokens: [], state: [] };
    });
  }

  /** Last saved first. @returns {Promise<ListedConversation[]>} */
  async list() {
    const found = [];
    for (const key of (await this.#place.sizes()).keys()) {
      const file = key.endsWith(".part") ? null : await this.#place.file(key);
      const lastSaved = file instanceof File ? file.lastModified : 0;
      if (file) found.push({ name: nameOf(key), bytes: file.size, lastSaved });
    }
    return found.sort((a, b) => b.lastSaved - a.lastSaved);
  }

  /** Whether it was there. @param {string} name */
  remove(name) {
    return alone(name, async (key) => {
      const isThere = (await this.#place.file(key)) !== null;
      await this.#place.remove(key);
      return isThere;
    });
  }

  /** Bytes of all of them. */
  async bytes() {
    return [...(await this.#place.sizes()).values()].reduce((total, size) => total + size, 0);
  }

  /** @param {string} name @param {string} key @param {Uint8Array[]} pieces */
  async #write(name, key, pieces) {
    const needed = () => pieces.reduce((total, { length }) => total + length, 0);
    await roomFor(`the conversation '${name}'`, needed, async () => {
      await this.#sweep();
      const part = await this.#place.part(key); // throws too where there is no room at all
      try {
        part.cut(0);
        for (const piece of pieces) part.append(piece);
      } catch (error) {
        part.cut(0);
        part.close();
        throw error;
      }
      await part.finish();
    });
  }

  /** Empties what tabs that ended were writing. */
  async #sweep() {
    for (const [file, size] of await this.#place.sizes()) {
      const key = file.replace(/\.part$/, "");
      if (key === file || !size) continue;
      await ifFree(lockOf(key), async () => {
        const part = await this.#place.part(key);
        part.cut(0);
        part.close();
      });
    }
  }
}

/** @param {string} key */
const lockOf = (key) => `embedllm conversation ${key}`;

/** One at a time of a name. @template T @param {string} name @param {(key: string) => Promise<T>} work @returns {Promise<T>} */
async function alone(name, work) {
  const key = keyOf(name);
  return locked(lockOf(key), undefined, () => work(key));
}

/** The name of the file: systems differ in which letters a name can have. @param {unknown} name */
function keyOf(name) {
  const bytes = typeof name === "string" ? new TextEncoder().encode(name) : [];
  if (bytes.length && bytes.length <= LONGEST) return hex(bytes);
  const found = typeof name === "string" ? `has ${bytes.length} bytes` : `is a ${typeof name}`;
  throw new RangeError(`the name of a saved conversation ${found}; expected a text of 1 to ${LONGEST} bytes.`);
}

/** @param {string} key */
function nameOf(key) {
  const bytes = key.match(/../g) ?? [];
  return new TextDecoder().decode(Uint8Array.from(bytes, (byte) => parseInt(byte, 16)));
}

/**
 * @param {string} name @param {Blob} file
 * @returns {Promise<{record: {saved: Kept["saved"], tokens: number[], sizes: number[], sha256: string, kind: Kind}, end: number}>}
 */
async function readRecord(name, file) {
  const prefix = await bytesOf(file, 0, PREFIX);
  const end = prefix.length === PREFIX ? PREFIX + new DataView(prefix.buffer).getUint32(0) : 0;
  const bytes = await bytesOf(file, PREFIX, end);
  if (!bytes.length || hex(await sha256(bytes)) !== hex(prefix.subarray(4))) {
    throw new EmbedError(`the saved conversation '${name}' is damaged. Remove it.`);
  }
  const record = JSON.parse(new TextDecoder().decode(bytes));
  if (record.format === FORMAT) return { record, end };
  throw new EmbedError(
    `the saved conversation '${name}' has format ${record.format}; this version of embedllm-web reads ${FORMAT}. ` +
      "Upgrade with: npm install embedllm-web@latest",
  );
}

/** Why a KV cache cannot be used; empty when it can. @param {Kind} found @param {Kind} here */
function kindFault(found, here) {
  if (found.device !== here.device || found.type !== here.type) {
    return `it was computed on '${found.device}' in ${found.type}, and the model is on '${here.device}' in ${here.type}`;
  }
  return found.weights === here.weights && found.graph === here.graph ? "" : "it is of another model";
}

/** Why this number of tokens cannot be held; empty when they can. @param {number} tokens @param {Kind} here */
function lengthFault(tokens, { context }) {
  return tokens > context ? `it has ${tokens} tokens, and the model was loaded with a context of ${context}` : "";
}

/** @param {Blob} file @param {number} from @param {number} to */
const bytesOf = async (file, from, to) => new Uint8Array(await file.slice(from, to).arrayBuffer());

/** @param {Uint8Array} bytes */
async function sha256(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {Uint8Array<ArrayBuffer>} */ (bytes)));
}

/** The sha256 of the pieces' sha256: the browser's own takes no piece after another. @param {Uint8Array[]} pieces */
async function sum(pieces) {
  const sums = new Uint8Array(32 * pieces.length);
  for (const [place, piece] of pieces.entries()) sums.set(await sha256(piece), 32 * place);
  return hex(await sha256(sums));
}

/** @param {ArrayLike<number>} bytes */
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
