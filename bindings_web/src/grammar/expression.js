// What a grammar is made of: expressions over bytes that regexes, schemas and EBNF are translated into.
//
// Expressions are plain objects that may be shared: the same object stands for the same language.

/**
 * text: these bytes. set: one byte whose entry is 1. sequence and choice: of items. repeat: `least` to `most` times.
 * rule: whatever `of` gives, so that a language may contain itself.
 *
 * @typedef {{kind: "text", bytes: Uint8Array}
 *   | {kind: "set", members: Uint8Array}
 *   | {kind: "sequence", items: Expression[]}
 *   | {kind: "choice", items: Expression[]}
 *   | {kind: "repeat", item: Expression, least: number, most: number}
 *   | Rule} Expression
 *
 * @typedef {{kind: "rule", name: string, of: Expression | null}} Rule
 */

/** A range of code points, both ends in it. @typedef {[first: number, last: number]} Range */

const LAST_CODE_POINT = 0x10ffff;
const UTF8 = new TextEncoder();
// each block of code points has one length in UTF-8; surrogates have none
/** @type {Range[]} */
const SAME_LENGTH = [
  [0, 0x7f],
  [0x80, 0x7ff],
  [0x800, 0xd7ff],
  [0xe000, 0xffff],
  [0x10000, LAST_CODE_POINT],
];

/** The empty text. */
export const NOTHING = /** @type {Expression} */ ({ kind: "sequence", items: [] });

/** @param {string} text @returns {Expression} */
export function text(text) {
  return text === "" ? NOTHING : { kind: "text", bytes: UTF8.encode(text) };
}

/** @param {(Expression | string)[]} items @returns {Expression} */
export function sequence(...items) {
  return { kind: "sequence", items: items.map((item) => (typeof item === "string" ? text(item) : item)) };
}

/** @param {(Expression | string)[]} items @returns {Expression} */
export function choice(...items) {
  return { kind: "choice", items: items.map((item) => (typeof item === "string" ? text(item) : item)) };
}

/** @param {Expression} item @param {number} least @param {number} [most] @returns {Expression} */
export function repeat(item, least, most = Infinity) {
  return { kind: "repeat", item, least, most };
}

/** @param {Expression | string} item @returns {Expression} */
export function optional(item) {
  return choice(item, NOTHING);
}

/**
 * One character out of these ranges, in UTF-8.
 *
 * @param {Range[]} ranges in any order; surrogates among them are left out
 * @returns {Expression}
 */
export function character(ranges) {
  const single = new Uint8Array(256);
  /** @type {Expression[]} */
  const longer = [];
  for (const [first, last] of united(ranges)) {
    for (const [start, end] of SAME_LENGTH) {
      const low = Math.max(first, start);
      const high = Math.min(last, end);
      if (low > high) continue;
      if (end <= 0x7f) single.fill(1, low, high + 1);
      else longer.push(...byteRanges(encoded(low), encoded(high)));
    }
  }
  const items = single.includes(1) ? [/** @type {Expression} */ ({ kind: "set", members: single }), ...longer] : longer;
  return items.length === 1 ? items[0] : { kind: "choice", items };
}

/** Every code point that is in none of these ranges. @param {Range[]} ranges @returns {Range[]} */
export function complement(ranges) {
  /** @type {Range[]} */
  const left = [];
  let next = 0;
  for (const [first, last] of united(ranges)) {
    if (first > next) left.push([next, first - 1]);
    next = last + 1;
  }
  if (next <= LAST_CODE_POINT) left.push([next, LAST_CODE_POINT]);
  return left;
}

/** The code points that both have. @param {Range[]} left @param {Range[]} right @returns {Range[]} */
export function common(left, right) {
  return complement([...complement(left), ...complement(right)]);
}

/** @param {Range[]} ranges @returns {Range[]} the same code points in ascending ranges that do not touch */
function united(ranges) {
  /** @type {Range[]} */
  const found = [];
  for (const [first, last] of [...ranges].sort((one, other) => one[0] - other[0])) {
    const before = found.at(-1);
    if (before && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else found.push([first, last]);
  }
  return found;
}

/** @param {number} codePoint @returns {number[]} */
function encoded(codePoint) {
  return [...UTF8.encode(String.fromCodePoint(codePoint))];
}

/**
 * The byte strings from low to high, both of the same length and valid UTF-8.
 *
 * @param {number[]} low @param {number[]} high @returns {Expression[]}
 */
function byteRanges(low, high) {
  if (low.length === 1) return [bytes(low[0], high[0])];
  const [first, ...lowRest] = low;
  const [last, ...highRest] = high;
  const least = lowRest.map(() => 0x80);
  const most = lowRest.map(() => 0xbf);
  /** @type {(from: number, to: number, start: number[], end: number[]) => Expression} */
  const part = (from, to, start, end) => sequence(bytes(from, to), choice(...byteRanges(start, end)));
  if (first === last) return [part(first, last, lowRest, highRest)];
  const isLowWhole = lowRest.every((byte) => byte === 0x80);
  const isHighWhole = highRest.every((byte) => byte === 0xbf);
  const from = isLowWhole ? first : first + 1;
  const to = isHighWhole ? last : last - 1;
  return [
    ...(isLowWhole ? [] : [part(first, first, lowRest, most)]),
    ...(from <= to ? [part(from, to, least, most)] : []),
    ...(isHighWhole ? [] : [part(last, last, least, highRest)]),
  ];
}

/** @param {number} first @param {number} last @returns {Expression} */
function bytes(first, last) {
  return { kind: "set", members: new Uint8Array(256).fill(1, first, last + 1) };
}
