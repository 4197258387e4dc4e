/** The tokenizer in a folder's tokenizer.json: the twin of embedllm/text/tokenizer.py's Tokenizer.
 *
 * @huggingface/tokenizers runs the model (BPE, Unigram, WordPiece) and writes patterns in JavaScript's way. What stands
 * around them is here, since the library's own differs from the package `tokenizers` there: digits, metaspaces and
 * merged splits, flags of added tokens, byte tokens that are no UTF-8, byte order marks.
 */

import { PackageError, reason } from "../errors.js";
import { AddedTokens, addedTokenSplitter } from "./added_tokens.js";
import { decoder } from "./detokenize.js";
import { NORMALIZERS, PRE_TOKENIZERS } from "./encoder_parts.js";
import { normalizer } from "./normalize.js";
import { postProcessor } from "./postprocess.js";
import { preTokenizer } from "./pretokenize.js";
import { vocabulary } from "./vocabulary.js";
import { addedToken, readTokenizerConfig } from "../package/tokenizer_config.js";

/** @typedef {import("./parts.js").Library} Library the module @huggingface/tokenizers */
/** @typedef {import("../package/tokenizer_config.js").TokenizerConfig} TokenizerConfig */

const LONE_SURROGATE = /\p{Cs}/u;

export class TextCodec {
  #added;
  #cut;
  #decode;
  #finish;
  #preTokenize;
  #specialTexts;
  #spellings;
  #vocabulary;

  /**
   * The tokenizer among a folder's texts, with the special tokens that its small files name.
   *
   * Raises PackageError when tokenizer.json is missing or damaged, or has a part that cannot be done here exactly.
   * @param {Library} library
   * @param {Map<string, string>} texts
   */
  constructor(library, texts) {
    const text = texts.get("tokenizer.json");
    if (text === undefined) throw new PackageError("the model has no tokenizer.json. Copy it from the model that the folder was made of.");
    const config = readTokenizerConfig(texts);
    try {
      const file = JSON.parse(text);
      this.#vocabulary = vocabulary(library, file.model);
      const { ids } = this.#vocabulary;
      this.#added = new AddedTokens((content) => ids.get(content), ids.size);
      this.#added.add(file.added_tokens.map((/** @type {Record<string, unknown>} */ entry) => addedToken(entry, false)));
      this.#added.add(missingTokens(this.#added, config));
      const normalize = normalizer(library, file.normalizer, NORMALIZERS);
      this.#cut = addedTokenSplitter(this.#added, normalize, config.splitSpecial);
      // `tokenizers` spells such a token as it is looked for, and then does not know it for a special one
      const spelled = [...this.#added.byId].map(([id, token]) => /** @type {const} */ ([id, token.normalized ? normalize(token.content) : token.content]));
      this.#spellings = new Map([...this.#vocabulary.spellings, ...spelled]);
      this.#preTokenize = preTokenizer(library, file.pre_tokenizer, PRE_TOKENIZERS);
      this.#finish = postProcessor(file.post_processor);
      this.#decode = decoder(library, file.decoder);
    } catch (error) {
      if (error instanceof PackageError) throw error;
      throw new PackageError(`'tokenizer.json' is not a tokenizer that can be read: ${reason(error)}. Fetch the file again.`, { cause: error });
    }
    const { byId } = this.#added;
    this.#specialTexts = this.#added.special;
    /** The special tokens that have a role, by its name: {eos_token: "</s>", ...}. @type {Readonly<Record<string, string>>} */
    this.named = Object.freeze(Object.fromEntries(Object.entries(config.named).map(([name, token]) => [name, token.content])));
    /** Tokens that stand for no text, such as the marks of a turn. */
    this.specialTokens = new Set([...byId].filter(([, token]) => token.special).map(([id]) => id));
    this.size = [...byId.keys()].reduce((size, id) => Math.max(size, id + 1), new Set([...this.#vocabulary.ids.keys(), ...this.#added.ids.keys()]).size);
  }

  /**
   * The tokens of a text. Raises RangeError for half a surrogate pair, which is no text.
   *
   * @param {string} text
   * @param {{special: boolean}} options special: with the BOS or EOS that the tokenizer itself puts around a text. A
   *   prompt made by a chat template holds its own, so there it is false.
   * @returns {number[]}
   */
  encode(text, { special }) {
    const tokens = this.encodePrompt({ text, marked: text });
    return special ? this.#finish(tokens) : tokens;
  }

  /**
   * The tokens of what a chat template wrote, where texts of special tokens that are marked are plain text.
   *
   * @param {import("../package/content_marks.js").RenderedPrompt} prompt
   * @returns {number[]}
   */
  encodePrompt({ text, marked }) {
    const odd = LONE_SURROGATE.exec(text);
    if (odd) {
      const code = odd[0].charCodeAt(0).toString(16).toUpperCase();
      throw new RangeError(
        `the text has the lone surrogate U+${code} at character ${[...text.slice(0, odd.index)].length}, which is no text. ` +
          "It often is half of a character that was cut in two; cut between characters (text.toWellFormed() replaces it).",
      );
    }
    return this.#cut(text, marked).flatMap((piece, at) =>
      typeof piece === "number" ? [piece] : this.#preTokenize(piece, at === 0).flatMap((part) => this.#vocabulary.encode(part)));
  }

  /**
   * The text of tokens; special tokens are left out unless `special`, unknown ones always.
   *
   * @param {Iterable<number>} tokens
   * @param {{special?: boolean}} [options]
   */
  decode(tokens, { special = false } = {}) {
    /** @type {string[]} */
    const spellings = [];
    for (const token of tokens) {
      const spelling = this.tokenText(token);
      if (spelling !== null && (special || !this.#specialTexts.has(spelling))) spellings.push(spelling);
    }
    return this.#decode(spellings);
  }

  /** The vocabulary's own spelling of a token ("Ġhello", "▁hello", "<0x0A>"), null when it is unknown. @param {number} token */
  tokenText(token) {
    return this.#spellings.get(token) ?? null;
  }

  /** The texts of the special tokens. */
  get specialTexts() {
    return this.#specialTexts;
  }

  /** The token that the vocabulary spells exactly like this, such as "<|im_end|>"; null when there is none. @param {string} text */
  tokenId(text) {
    return this.#added.ids.get(text) ?? this.#vocabulary.ids.get(text) ?? null;
  }
}

/** The tokens that only the configuration knows, as transformers 5.24 adds them. @param {AddedTokens} added @param {TokenizerConfig} config */
function missingTokens(added, config) {
  const present = new Map([...added.byId.values()].map((token) => [token.content, token]));
  const wanted = new Map(config.added.map((token) => [token.content, token]));
  for (const token of Object.values(config.named)) {
    const known = wanted.get(token.content) ?? present.get(token.content);
    wanted.set(token.content, known ? { ...known, special: true } : token);
  }
  for (const token of config.extra) {
    if (!present.has(token.content) && !wanted.has(token.content)) wanted.set(token.content, token);
  }
  return [...wanted.values()];
}
