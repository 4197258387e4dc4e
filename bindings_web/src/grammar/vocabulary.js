// The bytes that each token of a vocabulary stands for, and the tree of them that a grammar walks along.

import { PackageError } from "../errors.js";

const UTF8 = new TextEncoder();
const BYTE_TOKEN = /^<0x([0-9A-Fa-f]{2})>$/;

/** @typedef {Record<string, any>} Json an object out of a tokenizer's files, which have no schema */

/**
 * A tree of bytes, its nodes in the order in which a walk meets them. depths: of each node, from 0. bytes: that lead to
 * it. tokens: that end there, or -1. after: the next node that is not below it. twins: token -> another of the same
 * bytes, or -1.
 *
 * @typedef {{depths: Uint16Array, bytes: Uint8Array, tokens: Int32Array, after: Int32Array, twins: Int32Array}} Tree
 */

/** @type {WeakMap<ReadonlyMap<string, string>, Vocabulary>} */
const READ = new WeakMap();

/** What a vocabulary's tokens stand for. */
export class Vocabulary {
  /** @type {Tree | null} */
  #tree = null;

  /** @param {Uint8Array[]} tokens the bytes of each token by its id; none for those that stand for no text */
  constructor(tokens) {
    this.tokens = tokens;
    /** Bytes of the longest token. */
    this.longest = tokens.reduce((longest, bytes) => Math.max(longest, bytes.length), 0);
  }

  /**
   * The vocabulary of a folder; read once as long as `texts` lives.
   *
   * @param {ReadonlyMap<string, string>} texts the folder's small files by name
   * @returns {Vocabulary}
   * @throws PackageError when the tokens' bytes cannot be told from them
   */
  static of(texts) {
    let known = READ.get(texts);
    if (!known) {
      known = new Vocabulary(read(texts));
      READ.set(texts, known);
    }
    return known;
  }

  /** @returns {Tree} */
  get tree() {
    this.#tree ??= treeOf(this.tokens);
    return this.#tree;
  }
}

/** @param {ReadonlyMap<string, string>} texts @returns {Uint8Array[]} */
function read(texts) {
  const file = texts.get("tokenizer.json");
  if (file === undefined) {
    throw new PackageError(
      "the package has no 'tokenizer.json', from which a grammar learns the tokens. Export it again.",
    );
  }
  /** @type {Json} */
  const tokenizer = JSON.parse(file);
  const toBytes = spelling(tokenizer);
  const { vocab } = tokenizer.model;
  /** @type {Uint8Array[]} */
  const tokens = [];
  if (Array.isArray(vocab))
    for (const [piece] of vocab) tokens.push(toBytes(piece)); // Unigram: [piece, score]
  else for (const [piece, token] of Object.entries(vocab)) tokens[token] = toBytes(piece);
  /** @type {Json} */
  const config = JSON.parse(texts.get("tokenizer_config.json") ?? "{}");
  for (const [token, { content, special }] of Object.entries(config.added_tokens_decoder ?? {})) {
    tokens[Number(token)] = special ? new Uint8Array() : UTF8.encode(content);
  }
  for (const { id, content, special } of tokenizer.added_tokens ?? []) {
    tokens[id] = special ? new Uint8Array() : UTF8.encode(content);
  }
  return Array.from(tokens, (bytes) => bytes ?? new Uint8Array());
}

/**
 * How this tokenizer's decoder makes bytes of a spelling.
 *
 * @param {Json} tokenizer
 * @returns {(piece: string) => Uint8Array}
 */
function spelling(tokenizer) {
  const { decoder } = tokenizer;
  /** @type {Json[]} */
  const steps = decoder?.type === "Sequence" ? decoder.decoders : decoder ? [decoder] : [];
  const kinds = steps.map((step) => step.type);
  if (kinds.includes("ByteLevel")) return byteLevel;
  let hasBytes = false;
  /** @type {[from: string, to: string][]} */
  const replaced = [];
  for (const { type, pattern, content, replacement } of steps) {
    if (type === "ByteFallback") hasBytes = true;
    else if (type === "Metaspace") replaced.push([replacement ?? "\u2581", " "]);
    else if (type === "Replace" && typeof pattern?.String === "string") replaced.push([pattern.String, content]);
    // Fuse changes nothing; Strip takes a space off the reply's first token, which no JSON begins with
  }
  if (
    !steps.length ||
    kinds.some((kind) => !["ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"].includes(kind))
  ) {
    throw new PackageError(
      `the tokenizer's decoder is ${kinds.join(", ") || "missing"}; a grammar reads those of ByteLevel, Metaspace, or ` +
        "Replace with ByteFallback, Fuse and Strip. Ask without response_format.",
    );
  }
  return (piece) => {
    const byte = hasBytes ? BYTE_TOKEN.exec(piece) : null;
    if (byte) return Uint8Array.of(Number.parseInt(byte[1], 16));
    return UTF8.encode(replaced.reduce((text, [from, to]) => text.replaceAll(from, to), piece));
  };
}

// GPT-2's alphabet: printable bytes stand for themselves, the others follow from U+0100 on
const BYTE_OF = (() => {
  /** @type {Map<string, number>} */
  const found = new Map();
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const isPrintable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
    found.set(String.fromCodePoint(isPrintable ? byte : next++), byte);
  }
  return found;
})();

/** @param {string} piece @returns {Uint8Array} */
function byteLevel(piece) {
  const found = new Uint8Array(piece.length);
  for (let at = 0; at < piece.length; at++) {
    const byte = BYTE_OF.get(piece[at]);
    if (byte === undefined) return UTF8.encode(piece); // as the decoder does: no text of that alphabet is itself
    found[at] = byte;
  }
  return found;
}

/** @param {Uint8Array[]} tokens @returns {Tree} */
function treeOf(tokens) {
  const texts = tokens.map((bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const order = [...texts.keys()].filter((token) => texts[token] !== "");
  order.sort((one, other) => (texts[one] < texts[other] ? -1 : texts[one] > texts[other] ? 1 : one - other));
  const most = tokens.reduce((sum, bytes) => sum + bytes.length, 0);
  const tree = {
    depths: new Uint16Array(most),
    bytes: new Uint8Array(most),
    tokens: new Int32Array(most).fill(-1),
    after: new Int32Array(most),
    twins: new Int32Array(tokens.length).fill(-1),
  };
  /** @type {number[]} */
  const path = []; // the nodes above, by depth
  let size = 0;
  /** @type {Uint8Array} */
  let before = new Uint8Array();
  for (const token of order) {
    const bytes = tokens[token];
    let shared = 0;
    while (shared < before.length && shared < bytes.length && before[shared] === bytes[shared]) shared++;
    while (path.length > shared) tree.after[/** @type {number} */ (path.pop())] = size;
    for (let depth = shared; depth < bytes.length; depth++) {
      tree.depths[size] = depth;
      tree.bytes[size] = bytes[depth];
      path.push(size++);
    }
    const end = path[path.length - 1];
    tree.twins[token] = tree.tokens[end];
    tree.tokens[end] = token;
    before = bytes;
  }
  for (const node of path) tree.after[node] = size;
  const { depths, bytes, tokens: ends, after, twins } = tree;
  return {
    depths: depths.slice(0, size),
    bytes: bytes.slice(0, size),
    tokens: ends.slice(0, size),
    after: after.slice(0, size),
    twins,
  };
}
