// JSON numbers between two bounds, digit by digit.
//
// Without bounds they have at most 15 digits before the point, 15 after it and an exponent of two: enough for a double,
// and an end to digits that a model would repeat for ever.

import { NOTHING, character, choice, optional, repeat, sequence, text } from "./expression.js";

/** @import { Expression } from "./expression.js" */

/**
 * Bounds of a number: infinite where there is none.
 *
 * @typedef {{low: number, high: number, isLowOpen: boolean, isHighOpen: boolean}} Bounds
 */

/** Decimal digits of a number of no sign. @typedef {{whole: bigint, fraction: string}} Decimal */

/** @typedef {{digits: string, isOpen: boolean}} Edge digits after the point that a fraction is compared with */

const MOST_DIGITS = 15;
const DIGIT = digits(0, 9);
const EXPONENT = sequence(choice("e", "E"), optional(choice("+", "-")), repeat(DIGIT, 1, 2));

/** Any number. */
export const ANY_NUMBER = sequence(
  optional("-"),
  wholeFrom(0n, null),
  optional(sequence(".", repeat(DIGIT, 1, MOST_DIGITS))),
  optional(EXPONENT),
);

/**
 * Whole numbers within bounds.
 *
 * @param {Bounds} bounds
 * @returns {Expression}
 */
export function integers({ low, high, isLowOpen, isHighOpen }) {
  const least = low === -Infinity ? null : BigInt(isLowOpen ? Math.floor(low) + 1 : Math.ceil(low));
  const most = high === Infinity ? null : BigInt(isHighOpen ? Math.ceil(high) - 1 : Math.floor(high));
  /** @type {Expression[]} */
  const found = [];
  if (most === null || most >= 0n) found.push(wholeFrom(least === null || least < 0n ? 0n : least, most));
  if (least === null || least < 0n) {
    const from = most === null || most >= 0n ? 1n : -most;
    found.push(sequence("-", wholeFrom(from, least === null ? null : -least)));
  }
  return choice(...found);
}

/**
 * Numbers within bounds, without an exponent if there are any.
 *
 * @param {Bounds} bounds
 * @returns {Expression}
 */
export function numbers(bounds) {
  const { low, high, isLowOpen, isHighOpen } = bounds;
  if (low === -Infinity && high === Infinity) return ANY_NUMBER;
  /** @type {Expression[]} */
  const found = [];
  if (high >= 0) {
    const isOpen = isLowOpen && low >= 0;
    found.push(positive(Math.max(low, 0), high, isOpen, isHighOpen));
  }
  if (low <= 0) {
    const isOpen = isHighOpen && high <= 0;
    found.push(sequence("-", positive(Math.max(-high, 0), -low, isOpen, isLowOpen)));
  }
  return choice(...found);
}

/**
 * @param {number} low @param {number} high @param {boolean} isLowOpen @param {boolean} isHighOpen
 * @returns {Expression}
 */
function positive(low, high, isLowOpen, isHighOpen) {
  const from = decimal(low);
  const to = high === Infinity ? null : decimal(high);
  const lowEdge = { digits: from.fraction, isOpen: isLowOpen };
  const highEdge = to && { digits: to.fraction, isOpen: isHighOpen };
  if (to && from.whole > to.whole) return choice();
  if (to && from.whole === to.whole) return sequence(text(String(from.whole)), fraction(lowEdge, highEdge));
  const found = [sequence(text(String(from.whole)), fraction(lowEdge, null))];
  if (!to || from.whole + 1n < to.whole) {
    found.push(sequence(wholeFrom(from.whole + 1n, to && to.whole - 1n), fraction(null, null)));
  }
  if (to) found.push(sequence(text(String(to.whole)), fraction(null, highEdge)));
  return choice(...found);
}

/** A point and digits between two edges, or nothing. @param {Edge | null} low @param {Edge | null} high */
function fraction(low, high) {
  const room = Math.max(MOST_DIGITS, (low?.digits.length ?? 0) + 1, (high?.digits.length ?? 0) + 1);
  const more = sequence(".", further(low, high, room));
  return endsAt(low, high) ? optional(more) : more;
}

/** Whether zeros from here on lie between the edges. @param {Edge | null} low @param {Edge | null} high */
function endsAt(low, high) {
  const isAbove = !low || (!low.isOpen && !/[1-9]/.test(low.digits));
  return isAbove && (!high || !high.isOpen || /[1-9]/.test(high.digits));
}

/**
 * One digit or more between two edges.
 *
 * @param {Edge | null} low @param {Edge | null} high @param {number} room most digits
 * @returns {Expression}
 */
function further(low, high, room) {
  if (low && !low.isOpen && !/[1-9]/.test(low.digits)) low = null; // everything is at least 0
  if (!low && !high) return repeat(DIGIT, 1, room);
  const first = low ? Number(low.digits[0] ?? 0) : 0;
  const last = high ? Number(high.digits[0] ?? 0) : 9;
  /** @type {Expression[]} */
  const found = [];
  for (let digit = first; digit <= last; digit++) {
    const lowLeft = low && digit === first ? { ...low, digits: low.digits.slice(1) } : null;
    const highLeft = high && digit === last ? { ...high, digits: high.digits.slice(1) } : null;
    /** @type {Expression[]} */
    const rest = [];
    if (endsAt(lowLeft, highLeft)) rest.push(NOTHING);
    if (room > 1) rest.push(further(lowLeft, highLeft, room - 1));
    found.push(sequence(text(String(digit)), choice(...rest)));
  }
  return choice(...found);
}

/**
 * Whole numbers from `least` to `most`; null: as many digits as a number without bounds may have.
 *
 * @param {bigint} least @param {bigint | null} most
 * @returns {Expression}
 */
function wholeFrom(least, most) {
  const longest = most === null ? Math.max(MOST_DIGITS, String(least).length) : String(most).length;
  const top = most ?? 10n ** BigInt(longest) - 1n;
  /** @type {Expression[]} */
  const found = [];
  if (least <= 0n && top >= 0n) found.push(text("0"));
  for (let length = 1; length <= longest; length++) {
    const start = 10n ** BigInt(length - 1);
    const end = 10n ** BigInt(length) - 1n;
    const from = least > start ? least : start;
    const to = top < end ? top : end;
    if (from > to) continue;
    if (from === start && to === end && length > 1 && length < longest) {
      let last = length; // all lengths that are whole, as one
      while (last < longest && 10n ** BigInt(last + 1) - 1n <= top) last++;
      found.push(sequence(digits(1, 9), repeat(DIGIT, length - 1, last - 1)));
      length = last;
    } else found.push(sameLength(String(from), String(to)));
  }
  return choice(...found);
}

/**
 * The numbers from low to high, which have the same length.
 *
 * @param {string} low @param {string} high
 * @returns {Expression}
 */
function sameLength(low, high) {
  if (low === "") return NOTHING;
  const first = Number(low[0]);
  const last = Number(high[0]);
  const [lowLeft, highLeft] = [low.slice(1), high.slice(1)];
  if (first === last) return sequence(low[0], sameLength(lowLeft, highLeft));
  const isLowWhole = !/[1-9]/.test(lowLeft);
  const isHighWhole = !/[0-8]/.test(highLeft);
  const from = isLowWhole ? first : first + 1;
  const to = isHighWhole ? last : last - 1;
  /** @type {Expression[]} */
  const found = [];
  if (!isLowWhole) found.push(sequence(low[0], sameLength(lowLeft, "9".repeat(lowLeft.length))));
  if (from <= to) found.push(sequence(digits(from, to), repeat(DIGIT, lowLeft.length, lowLeft.length)));
  if (!isHighWhole) found.push(sequence(high[0], sameLength("0".repeat(highLeft.length), highLeft)));
  return choice(...found);
}

/** @param {number} first @param {number} last @returns {Expression} */
function digits(first, last) {
  return character([[0x30 + first, 0x30 + last]]);
}

/** @param {number} value 0 or more @returns {Decimal} as it is written shortest */
function decimal(value) {
  const [mantissa, exponent = "0"] = String(value).split("e");
  const [before, after = ""] = mantissa.split(".");
  const shift = Number(exponent);
  const all =
    shift >= 0
      ? before + after.padEnd(shift, "0")
      : (before + after).padStart(before.length + after.length - shift, "0");
  const point = before.length + shift + (shift < 0 ? -shift : 0);
  return { whole: BigInt(all.slice(0, point) || "0"), fraction: all.slice(point).replace(/0+$/, "") };
}
