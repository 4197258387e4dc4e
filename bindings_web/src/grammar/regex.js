// Regular expressions as ECMAScript writes them, as expressions: for whole replies, and for the inside of JSON strings.

import { character, choice, common, complement, repeat, sequence, text } from "./expression.js";

/** @import { Expression, Range } from "./expression.js" */

const MOST_ROUNDS = 10_000;
/** @type {Range[]} */
const DIGITS = [[0x30, 0x39]];
/** @type {Range[]} */
const WORDS = [...DIGITS, [0x41, 0x5a], [0x5f, 0x5f], [0x61, 0x7a]];
/** @type {Range[]} */
const SPACES = [[9, 13], [32, 32], [0xa0, 0xa0], [0x1680, 0x1680], [0x2000, 0x200a], [0x2028, 0x2029], [0x202f, 0x202f],
  [0x205f, 0x205f], [0x3000, 0x3000], [0xfeff, 0xfeff]]; // prettier-ignore
/** @type {Range[]} */
const LINE_ENDS = [
  [10, 10],
  [13, 13],
  [0x2028, 0x2029],
];
/** @type {Range[]} what a JSON string holds as it is */
export const PLAIN = complement([
  [0, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
]);
/** @type {Record<string, Range[]>} */
const CLASSES = { d: DIGITS, w: WORDS, s: SPACES, D: complement(DIGITS), W: complement(WORDS), S: complement(SPACES) };
/** @type {Record<string, number>} */
const CONTROLS = { n: 10, r: 13, t: 9, v: 11, f: 12, 0: 0 };

/**
 * What a regex matches from the first to the last character; "^" and "$" may stand at its ends.
 *
 * @param {string} source
 * @returns {Expression}
 * @throws RangeError for what it cannot follow: lookaround, backreferences, lazy quantifiers, \b, \p
 */
export function parseRegex(source) {
  return new Parser(source, character).whole(false);
}

/**
 * The contents of the JSON strings in which a regex is found, as a schema's "pattern" means it.
 *
 * @param {string} source
 * @returns {Expression}
 */
export function parsePattern(source) {
  return new Parser(source, inString).whole(true);
}

/** One character of a JSON string, escaped where it must be. @param {Range[]} ranges @returns {Expression} */
function inString(ranges) {
  const plain = common(ranges, PLAIN);
  /** @type {Expression[]} */
  const escaped = [];
  for (const [first, last] of common(ranges, [
    [0, 0x1f],
    [0x22, 0x22],
    [0x5c, 0x5c],
  ])) {
    for (let code = first; code <= last; code++)
      escaped.push(text(JSON.stringify(String.fromCodePoint(code)).slice(1, -1)));
  }
  return choice(...(plain.length ? [character(plain)] : []), ...escaped);
}

class Parser {
  #source;
  #characters;
  #one;
  #at = 0;

  /** @param {string} source @param {(ranges: Range[]) => Expression} one how a character is written */
  constructor(source, one) {
    this.#source = source;
    this.#characters = [...source];
    this.#one = one;
  }

  /** @param {boolean} isFound whether other text may stand around what has no "^" or "$" */
  whole(isFound) {
    /** @type {Expression[]} */
    const found = [];
    const around = isFound ? [repeat(this.#one(complement([])), 0)] : [];
    do {
      const isStart = this.#took("^");
      const middle = this.#sequence(true);
      const isEnd = this.#took("$");
      found.push(sequence(...(isStart ? [] : around), middle, ...(isEnd ? [] : around)));
    } while (this.#took("|"));
    if (this.#at < this.#characters.length) throw this.#error(`'${this.#characters[this.#at]}' stands alone`);
    return choice(...found);
  }

  /** @returns {Expression} */
  #alternatives() {
    const found = [this.#sequence(false)];
    while (this.#took("|")) found.push(this.#sequence(false));
    return found.length === 1 ? found[0] : choice(...found);
  }

  /** @param {boolean} isOutermost @returns {Expression} */
  #sequence(isOutermost) {
    /** @type {Expression[]} */
    const items = [];
    while (this.#at < this.#characters.length && !"|)".includes(this.#characters[this.#at])) {
      if (isOutermost && this.#characters[this.#at] === "$") break;
      items.push(this.#quantified());
    }
    return items.length === 1 ? items[0] : { kind: "sequence", items };
  }

  /** @returns {Expression} */
  #quantified() {
    let item = this.#atom();
    for (let bounds = this.#bounds(); bounds; bounds = this.#bounds()) {
      if (this.#took("?"))
        throw this.#error("a lazy quantifier says nothing about what may be matched; leave out its '?'");
      item = repeat(item, ...bounds);
    }
    return item;
  }

  /** @returns {[least: number, most: number] | null} */
  #bounds() {
    if (this.#took("*")) return [0, Infinity];
    if (this.#took("+")) return [1, Infinity];
    if (this.#took("?")) return [0, 1];
    const found = /^\{(\d+)(,(\d*))?\}/.exec(this.#characters.slice(this.#at, this.#at + 20).join(""));
    if (!found) return null;
    this.#at += found[0].length;
    const least = Number(found[1]);
    const most = found[2] === undefined ? least : found[3] === "" ? Infinity : Number(found[3]);
    if (least > most || least > MOST_ROUNDS || (most > MOST_ROUNDS && most !== Infinity)) {
      throw this.#error(`'${found[0]}' is no number of rounds up to ${MOST_ROUNDS}`);
    }
    return [least, most];
  }

  /** @returns {Expression} */
  #atom() {
    const read = this.#characters[this.#at++];
    if (read === "(") {
      if (this.#took("?") && !this.#took(":")) {
        const name = /^<([A-Za-z_]\w*)>/.exec(this.#characters.slice(this.#at).join(""));
        if (!name) throw this.#error("lookahead, lookbehind and flags cannot be followed");
        this.#at += name[0].length;
      }
      const inner = this.#alternatives();
      if (!this.#took(")")) throw this.#error("')' is missing");
      return inner;
    }
    if (read === "[") return this.#one(this.#set());
    if (read === ".") return this.#one(complement(LINE_ENDS));
    if (read === "\\") return this.#one(this.#escape());
    if ("*+?{}])".includes(read))
      throw this.#error(`'${read}' has nothing before it; write '\\${read}' for the character`);
    if ("^$".includes(read)) throw this.#error(`'${read}' can be followed at the ends only`);
    const code = /** @type {number} */ (read.codePointAt(0));
    return this.#one([[code, code]]);
  }

  /** @returns {Range[]} of a class, after its "[" */
  #set() {
    const isNegated = this.#took("^");
    /** @type {Range[]} */
    const ranges = [];
    while (!this.#took("]")) {
      const low = this.#member();
      if (this.#characters[this.#at] === "-" && this.#characters[this.#at + 1] !== "]") {
        this.#at++;
        const high = this.#member();
        const [first, last] = [low, high].map((range) =>
          range.length === 1 && range[0][0] === range[0][1] ? range[0][0] : -1,
        );
        if (first < 0 || last < first) throw this.#error("a range in [] goes from a character to a later one");
        ranges.push([first, last]);
      } else ranges.push(...low);
    }
    return isNegated ? complement(ranges) : ranges;
  }

  /** @returns {Range[]} */
  #member() {
    if (this.#at >= this.#characters.length) throw this.#error("']' is missing");
    const read = this.#characters[this.#at++];
    if (read === "\\") return this.#took("b") ? [[8, 8]] : this.#escape();
    const code = /** @type {number} */ (read.codePointAt(0));
    return [[code, code]];
  }

  /** @returns {Range[]} after its backslash */
  #escape() {
    const read = this.#characters[this.#at++] ?? "";
    if (Object.hasOwn(CLASSES, read)) return CLASSES[read];
    let code = Object.hasOwn(CONTROLS, read) ? CONTROLS[read] : -1;
    const digits = { x: /^[0-9A-Fa-f]{2}/, u: /^(?:[0-9A-Fa-f]{4}|\{[0-9A-Fa-f]{1,6}\})/ }[read];
    if (digits) {
      const found = digits.exec(this.#characters.slice(this.#at, this.#at + 8).join(""));
      if (!found) throw this.#error(`'\\${read}' has no hexadecimal digits`);
      this.#at += found[0].length;
      code = Number.parseInt(found[0].replace(/[{}]/g, ""), 16);
    } else if (code < 0) {
      if (/^[A-Za-z0-9]?$/.test(read)) throw this.#error(`'\\${read}' cannot be followed`);
      code = /** @type {number} */ (read.codePointAt(0));
    }
    return [[code, code]];
  }

  /** @param {string} wanted @returns {boolean} */
  #took(wanted) {
    if (this.#characters[this.#at] !== wanted) return false;
    this.#at++;
    return true;
  }

  /** @param {string} problem @returns {RangeError} */
  #error(problem) {
    return new RangeError(`regex '${this.#source}', character ${this.#at}: ${problem}`);
  }
}
