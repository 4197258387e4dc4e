// Text out of a stream of tokens, and stop strings in a stream of text: the twins of those in embedllm/text/stream.py.

const BYTE_TOKEN = /^<0x[0-9A-Fa-f]{2}>$/;
const REPLACEMENT = "\ufffd";
const WINDOW = 12; // tokens decoded at most for each new one, outside of a run of byte tokens
const CONTEXT = 4; // tokens kept when the window is cut: the last character lies in them, it has at most four bytes

/**
 * What a text stream asks of a tokenizer.
 *
 * decode: special tokens are left out unless `special`, unknown ones always. tokenText: the vocabulary's own spelling of
 * a token ("Ġhello", "▁hello", "<0x0A>"), null when it is unknown.
 *
 * @typedef {object} Codec
 * @property {{has(token: number): boolean}} specialTokens
 * @property {(tokens: number[], options: {special: boolean}) => string} decode
 * @property {(token: number) => string | null} tokenText
 */

/**
 * Text out of tokens that come one by one, each piece given once it can no longer change.
 *
 * The pieces, with what `flush` gives, are together exactly decode(all tokens), for any tokens. Held back are: a
 * character of which some bytes are still to come, and a whole run of byte tokens ("<0xE6>"), since one wrong byte would
 * turn all of the run into replacement characters.
 */
export class TextStream {
  #codec;
  #special;
  /** @type {number[]} the last tokens, enough of them to decode the next one in place */
  #window = [];
  #given = 0; // characters of the window's text that were given out

  /**
   * @param {Codec} codec
   * @param {{special?: boolean, before?: readonly number[]}} [options] before: the tokens of a prompt that is continued:
   *   its text and the pieces are then decode() of all tokens, and a space between both stays
   */
  constructor(codec, { special = false, before = [] } = {}) {
    this.#codec = codec;
    this.#special = special;
    this.#begin(before);
  }

  /** Takes the end of a prompt as given: a few tokens, and all of a run of byte tokens. @param {readonly number[]} before */
  #begin(before) {
    for (let at = before.length - 1; at >= 0 && this.#window.length < WINDOW; at--) {
      const spelling = this.#codec.tokenText(before[at]);
      if (spelling === null || (!this.#special && this.#codec.specialTokens.has(before[at]))) continue;
      if (this.#window.length >= CONTEXT && !BYTE_TOKEN.test(spelling)) break;
      this.#window.unshift(before[at]);
    }
    this.#given = this.#decoded().replace(/\ufffd+$/, "").length;
  }

  /**
   * Take one token; the text that is certain now, often empty.
   *
   * @param {number} token
   * @returns {string}
   */
  push(token) {
    const spelling = this.#codec.tokenText(token);
    // it leaves no trace in decode() either: the text around it joins
    if (spelling === null || (!this.#special && this.#codec.specialTokens.has(token))) return "";
    this.#window.push(token);
    if (BYTE_TOKEN.test(spelling)) return "";
    const text = this.#decoded();
    // A last replacement character may be the start of a character; what comes before it is certain.
    const certain = text.length - (text.endsWith(REPLACEMENT) ? 1 : 0);
    const piece = text.slice(this.#given, certain);
    this.#given = certain;
    if (this.#window.length > WINDOW) {
      this.#window = this.#window.slice(-CONTEXT);
      this.#given = this.#decoded().length - (text.length - certain);
    }
    return piece;
  }

  /**
   * The rest of the text; the next token begins another one.
   *
   * @returns {string}
   */
  flush() {
    const rest = this.#decoded().slice(this.#given);
    this.#window = [];
    this.#given = 0;
    return rest;
  }

  #decoded() {
    return this.#window.length ? this.#codec.decode(this.#window, { special: this.#special }) : "";
  }
}

/**
 * Finds the first of some strings in a text that comes in pieces, however it is split.
 *
 * The match that begins first wins, the shorter of two that begin together. Held back is the longest end of the text
 * that could still become a match.
 */
export class StopStrings {
  #strings;
  #held = "";
  /** @type {string | null} the stop string that was found */
  #matched = null;

  /** @param {readonly string[]} strings */
  constructor(strings) {
    if (!Array.isArray(strings) || !strings.every((string) => typeof string === "string" && string)) {
      throw new RangeError(`stop strings are a list of texts that are not empty, found ${JSON.stringify(strings)}.`);
    }
    this.#strings = [...strings];
  }

  /** The stop string that was found, null until then. */
  get matched() {
    return this.#matched;
  }

  /**
   * Take the next piece of text; what is certain to lie before any match. After a match: always empty.
   *
   * @param {string} piece
   * @returns {string}
   */
  push(piece) {
    if (this.#matched !== null) return "";
    const text = this.#held + piece;
    const open = this.#openStart(text);
    const found = this.#first(text);
    if (found && found.start <= open) {
      this.#matched = found.string;
      this.#held = "";
      return text.slice(0, found.start);
    }
    this.#held = text.slice(open);
    return text.slice(0, open);
  }

  /**
   * The text is at its end: what was held back, as far as a match.
   *
   * @returns {string}
   */
  flush() {
    const text = this.#held;
    this.#held = "";
    const found = this.#first(text);
    if (!found) return text;
    this.#matched = found.string;
    return text.slice(0, found.start);
  }

  /**
   * Where the first match begins, and which string it is.
   *
   * @param {string} text
   * @returns {{start: number, string: string} | null}
   */
  #first(text) {
    /** @type {{start: number, string: string} | null} */
    let best = null;
    for (const string of this.#strings) {
      const start = text.indexOf(string);
      if (
        start < 0 ||
        (best && (start > best.start || (start === best.start && string.length >= best.string.length)))
      ) {
        continue;
      }
      best = { start, string };
    }
    return best;
  }

  /**
   * Where the longest end of the text begins that is the beginning of a stop string; its length if none is.
   *
   * @param {string} text
   */
  #openStart(text) {
    const longest = this.#strings.reduce((most, { length }) => Math.max(most, length), 0);
    for (let start = Math.max(0, text.length - longest + 1); start < text.length; start++) {
      if (this.#strings.some((string) => string.startsWith(text.slice(start)))) return start;
    }
    return text.length;
  }
}
