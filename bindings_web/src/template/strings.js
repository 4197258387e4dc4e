/** The methods of Python's texts, as far as chat templates use them. */

import { iterate, numberOf, tuple, Tuple, typeError, typeName, unmarked, unsupported, valueError } from "./values.js";

/** @typedef {import("./values.js").Value} Value */

const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\p{Z}"; // what Python's str.isspace says yes to
const IS_SPACE = new RegExp(`^[${SPACE}]$`, "u");
const WORD = new RegExp(`[^${SPACE}]+`, "gu");

/** @param {string} string @param {Value} [letters] null or undefined: white space */
export function strip(string, letters, sides = "both") {
  const isGiven = letters !== null && letters !== undefined;
  const taken = new Set(isGiven ? needText(letters) : "");
  /** @param {string} letter */
  const goes = (letter) => (isGiven ? taken.has(letter) : IS_SPACE.test(letter));
  const units = isGiven ? [...string] : string; // white space never is half of a pair
  let [start, stop] = [0, units.length];
  if (sides !== "right") while (start < stop && goes(units[start])) start++;
  if (sides !== "left") while (stop > start && goes(units[stop - 1])) stop--;
  return typeof units === "string" ? units.slice(start, stop) : units.slice(start, stop).join("");
}

/** @param {string} string */
export function lines(string) {
  const parts = string.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
  return parts.at(-1) === "" ? parts.slice(0, -1) : parts;
}

/** @param {string} string */
export function capitalize(string) {
  const head = [...string][0] ?? "";
  return head.toUpperCase() + string.slice(head.length).toLowerCase();
}

/** @param {Value} value @returns {string} */
function needText(value) {
  const plain = unmarked(value);
  return typeof plain === "string" ? plain : typeError(`must be str, not ${typeName(value)}`);
}

/** @param {string} string @param {Value} [separator] @param {Value} [most] */
function split(string, separator, most, fromRight = false) {
  let left = numberOf(most ?? -1) ?? -1;
  left = left < 0 ? Infinity : left;
  if (separator === null || separator === undefined) {
    if (left === Infinity) return string.match(WORD) ?? [];
    return unsupported("split() by white space with a limit");
  }
  if (!needText(separator)) valueError("empty separator");
  const parts = string.split(separator);
  if (parts.length - 1 <= left) return parts;
  return fromRight
    ? [parts.slice(0, parts.length - left).join(separator), ...parts.slice(parts.length - left)]
    : [...parts.slice(0, left), parts.slice(left).join(separator)];
}

/** @param {string} string @param {Value} old @param {Value} fresh @param {Value} [most] */
export function replace(string, old, fresh, most) {
  const left = numberOf(most ?? -1) ?? -1;
  const parts = needText(old) === "" ? ["", ...string, ""] : string.split(old);
  const cut = left < 0 ? parts.length : left + 1;
  const tail = parts.slice(cut);
  return parts.slice(0, cut).join(needText(fresh)) + tail.map((part) => old + part).join("");
}

/** @param {string} string @param {Value} wanted @param {"startsWith" | "endsWith"} side */
function isAt(string, wanted, side) {
  const choices = wanted instanceof Tuple ? Array.from(wanted) : [wanted];
  return choices.some((choice) => string[side](needText(choice)));
}

/** @param {string} string @param {Value} wanted @param {boolean} isLast */
function find(string, wanted, isLast) {
  const at = isLast ? string.lastIndexOf(needText(wanted)) : string.indexOf(needText(wanted));
  return at < 0 ? -1 : [...string.slice(0, at)].length;
}

/** @param {string} string @param {string} wanted @param {boolean} isLast */
function partition(string, wanted, isLast) {
  const at = isLast ? string.lastIndexOf(wanted) : string.indexOf(wanted);
  if (at < 0) return isLast ? tuple("", "", string) : tuple(string, "", "");
  return tuple(string.slice(0, at), wanted, string.slice(at + wanted.length));
}

/** @param {string} string @param {RegExp} pattern each character must match; an empty text never does */
const isAll = (string, pattern) => string !== "" && [...string].every((letter) => pattern.test(letter));

/** By name: the signature, and what it does. @type {Record<string, [string, (string: string, ...args: Value[]) => Value]>} */
export const TEXT_METHODS = {
  upper: ["", (s) => s.toUpperCase()],
  lower: ["", (s) => s.toLowerCase()],
  capitalize: ["", capitalize],
  title: ["", (s) => s.replace(/\p{L}+/gu, capitalize)],
  strip: ["chars", (s, letters) => strip(s, letters)],
  lstrip: ["chars", (s, letters) => strip(s, letters, "left")],
  rstrip: ["chars", (s, letters) => strip(s, letters, "right")],
  startswith: ["prefix", (s, prefix) => isAt(s, prefix, "startsWith")],
  endswith: ["suffix", (s, suffix) => isAt(s, suffix, "endsWith")],
  split: ["sep maxsplit", (s, separator, most) => split(s, separator, most)],
  rsplit: ["sep maxsplit", (s, separator, most) => split(s, separator, most, true)],
  splitlines: ["", lines],
  replace: ["old new count", replace],
  join: ["iterable", (s, items) => iterate(items).map(needText).join(s)],
  find: ["sub", (s, wanted) => find(s, wanted, false)],
  rfind: ["sub", (s, wanted) => find(s, wanted, true)],
  index: ["sub", (s, wanted) => (find(s, wanted, false) < 0 ? valueError("substring not found") : find(s, wanted, false))],
  count: ["sub", (s, wanted) => (wanted === "" ? [...s].length + 1 : s.split(needText(wanted)).length - 1)],
  partition: ["sep", (s, wanted) => partition(s, needText(wanted), false)],
  rpartition: ["sep", (s, wanted) => partition(s, needText(wanted), true)],
  removeprefix: ["prefix", (s, prefix) => (s.startsWith(needText(prefix)) ? s.slice(prefix.length) : s)],
  removesuffix: ["suffix", (s, suffix) => (s.endsWith(needText(suffix)) && suffix ? s.slice(0, -suffix.length) : s)],
  isdigit: ["", (s) => isAll(s, /^[\p{Nd}²³¹⁰-⁹₀-₉]$/u)],
  isalpha: ["", (s) => isAll(s, /^\p{L}$/u)],
  isalnum: ["", (s) => isAll(s, /^[\p{L}\p{N}]$/u)],
  isspace: ["", (s) => isAll(s, IS_SPACE)],
  isupper: ["", (s) => /\p{Lu}/u.test(s) && !/\p{Ll}/u.test(s)],
  islower: ["", (s) => /\p{Ll}/u.test(s) && !/\p{Lu}/u.test(s)],
  zfill: ["width", (s, width) => {
    const zeros = "0".repeat(Math.max(0, width - [...s].length));
    return /^[+-]/.test(s) ? s[0] + zeros + s.slice(1) : zeros + s;
  }],
};
