/** A piece of text -> token ids: the model of a tokenizer.json, run by @huggingface/tokenizers. Read: version 0.2.0. */

import { PackageError } from "../errors.js";
import { refuse } from "./parts.js";

/** @typedef {import("./parts.js").Library} Library */
/** @typedef {import("./parts.js").Part} Part */

/**
 * @typedef {object} Vocabulary
 * @property {Map<string, number>} ids
 * @property {Map<number, string>} spellings
 * @property {(piece: string) => number[]} encode
 */

const ENCODER = new TextEncoder();

/** @param {Library} library @param {Part} model @returns {Vocabulary} */
export function vocabulary(library, model) {
  const kind = model.type ?? (Array.isArray(model.vocab) ? "Unigram" : model.merges ? "BPE" : "unknown");
  const entries = Array.isArray(model.vocab) ? model.vocab.map(([text], id) => [text, id]) : Object.entries(model.vocab);
  const ids = new Map(/** @type {[string, number][]} */ (entries));
  const spellings = new Map([...ids].map(([text, id]) => [id, text]));
  if (kind === "BPE") return { ids, spellings, encode: bytePairs(library, model, ids) };
  if (kind === "Unigram") return { ids, spellings, encode: unigram(library, model, ids) };
  if (kind === "WordPiece") return { ids, spellings, encode: wordPieces(library, model, ids) };
  return refuse(`the model '${kind}'`);
}

/** @param {Part} model @param {string} type @returns {any} what the library takes: its types name fields that files may lack */
const typed = (model, type) => ({ ...model, type });

/** The bytes of a text as tokens, null when one is not in the vocabulary. @param {string} text @param {Map<string, number>} ids */
function byteTokens(text, ids) {
  const found = Array.from(ENCODER.encode(text), (byte) => ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`));
  return found.includes(undefined) ? null : /** @type {number[]} */ (found);
}

/** @param {Library} library @param {Part} model @param {Map<string, number>} ids @returns {Vocabulary["encode"]} */
function bytePairs(library, model, ids) {
  if (model.dropout) refuse("a BPE dropout");
  if (model.continuing_subword_prefix || model.end_of_word_suffix) refuse("a BPE prefix or suffix of words");
  const name = model.unk_token ?? null;
  const unknown = name === null ? undefined : ids.get(name);
  const engine = new library.BPE(typed(model, "BPE"));
  /** @param {string} letter */
  const isKnown = (letter) => ids.has(letter) || (model.byte_fallback && byteTokens(letter, ids) !== null);
  /** Without an unknown token, `tokenizers` drops a character, and merges what stood around it. @param {string} piece */
  const known = (piece) => {
    if (model.ignore_merges && ids.has(piece)) return piece;
    const odd = Array.from(piece).find((letter) => !isKnown(letter));
    if (odd === undefined) return piece;
    if (name !== null) throw new PackageError(missingUnknown(name, odd));
    return Array.from(piece).filter(isKnown).join("");
  };
  return (piece) => {
    /** @type {number[]} */
    const tokens = [];
    let wasUnknown = false;
    for (const text of engine.encode([unknown === undefined ? known(piece) : piece])) {
      const id = ids.get(text) ?? unknown;
      const isUnknown = id === unknown && unknown !== undefined;
      if (id !== undefined && !(isUnknown && wasUnknown && model.fuse_unk)) tokens.push(id);
      wasUnknown = isUnknown;
    }
    return tokens;
  };
}

/** @param {string} name @param {string} letter */
const missingUnknown = (name, letter) =>
  `the text has '${letter}', which the model's vocabulary has no token for, and its unknown token '${name}' is ` +
  "not in the vocabulary either. Fetch tokenizer.json again, or leave the character out.";

/** @param {Library} library @param {Part} model @param {Map<string, number>} ids @returns {Vocabulary["encode"]} */
function unigram(library, model, ids) {
  const unknown = model.unk_id;
  if (unknown === null || unknown === undefined) refuse("a Unigram vocabulary without an unknown token");
  const engine = new library.Unigram(typed(model, "Unigram"), "");
  engine.scores[unknown] = model.vocab[unknown][1]; // the library lowers the score of the unknown token's own text
  return (piece) => {
    /** @type {string[]} */
    const texts = [];
    let wasUnknown = false;
    for (const text of engine.tokenize(piece)) {
      const isUnknown = !ids.has(text);
      if (isUnknown && wasUnknown) texts[texts.length - 1] += text;
      else texts.push(text);
      wasUnknown = isUnknown;
    }
    return texts.flatMap((text) => ids.get(text) ?? (model.byte_fallback ? byteTokens(text, ids) : null) ?? [unknown]);
  };
}

/** @param {Library} library @param {Part} model @param {Map<string, number>} ids @returns {Vocabulary["encode"]} */
function wordPieces(library, model, ids) {
  const unknown = ids.get(model.unk_token) ?? refuse("a WordPiece vocabulary without its unknown token");
  const engine = new library.WordPiece(typed(model, "WordPiece"));
  return (piece) => engine.encode([piece]).map((text) => ids.get(text) ?? unknown);
}
