/** What lies behind a dot or in square brackets in a chat template: the methods of Python's texts, dicts and lists. */

import {
  Float, isEqual, iterate, lengthOf, Namespace, numberOf, PythonError, text, tuple, Tuple, typeError,
  typeName, Undefined, unsupported, View,
} from "./values.js";

/** @typedef {import("./values.js").Value} Value */
/** @typedef {Map<string, Value>} Named arguments by name */
/** @typedef {(args: Value[], named: Named) => Value} Callable */

/**
 * The arguments of a call in the order of a signature.
 *
 * @param {string} name what is called
 * @param {string} signature "old new count=None" without the values: what is missing is undefined
 * @param {Value[]} args @param {Named} named
 * @returns {Value[]}
 */
export function bind(name, signature, args, named) {
  const names = signature.split(" ").filter(Boolean);
  if (args.length > names.length) typeError(`${name}() takes at most ${names.length} arguments (${args.length} given)`);
  const values = [...args];
  for (const [key, value] of named) {
    const place = names.indexOf(key);
    if (place < args.length) typeError(`${name}() got an unexpected keyword argument '${key}'`);
    values[place] = value;
  }
  return values;
}

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
  return typeof value === "string" ? value : typeError(`must be str, not ${typeName(value)}`);
}

/** @param {string} string @param {Value} [separator] @param {Value} [most] */
function split(string, separator, most, fromRight = false) {
  let left = numberOf(most ?? -1) ?? -1;
  left = left < 0 ? Infinity : left;
  if (separator === null || separator === undefined) {
    if (left === Infinity) return string.match(WORD) ?? [];
    return unsupported("split() by white space with a limit");
  }
  if (!needText(separator)) throw new PythonError("ValueError", "empty separator");
  const parts = string.split(separator);
  if (parts.length - 1 <= left) return parts;
  return fromRight
    ? [parts.slice(0, parts.length - left).join(separator), ...parts.slice(parts.length - left)]
    : [...parts.slice(0, left), parts.slice(left).join(separator)];
}

/** @param {string} string @param {Value} old @param {Value} fresh @param {Value} [most] */
export function replace(string, old, fresh, most) {
  const left = numberOf(most ?? -1) ?? -1;
  const parts = needText(old) === "" && string !== "" ? ["", ...string, ""] : string.split(old);
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
const TEXT_METHODS = {
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
  zfill: ["width", (s, width) => (/^[+-]/.test(s) ? s[0] + s.slice(1).padStart(width - 1, "0") : s.padStart(width, "0"))],
};

/** @param {string} kind @returns {View} */
function view(kind, /** @type {Iterable<Value>} */ items) {
  return Object.assign(View.from(items), { kind });
}

/** @type {Record<string, [string, (dict: Map<Value, Value>, ...args: Value[]) => Value]>} */
const DICT_METHODS = {
  get: ["key default", (dict, key, other = null) => (dict.has(key) ? dict.get(key) : other)],
  items: ["", (dict) => view("items", Array.from(dict, (pair) => tuple(...pair)))],
  keys: ["", (dict) => view("keys", [...dict.keys()])],
  values: ["", (dict) => view("values", [...dict.values()])],
  copy: ["", (dict) => new Map(dict)],
};

/** @type {Record<string, [string, (list: Value[], ...args: Value[]) => Value]>} */
const LIST_METHODS = {
  index: ["value", (list, value) => {
    const at = list.findIndex((item) => isEqual(item, value));
    return at < 0 ? valueError("the value is not in the list") : at;
  }],
  count: ["value", (list, value) => list.filter((item) => isEqual(item, value)).length],
  copy: ["", (list) => Array.from(list)],
};

const CHANGING = /^(append|extend|insert|remove|pop|popitem|clear|sort|reverse|update|setdefault)$/;

/** What Python's types can do and this file cannot: an error, since an undefined value would go unseen. */
const MISSING = new RegExp(
  "^(casefold|center|encode|expandtabs|format|format_map|isascii|isdecimal|isidentifier|isnumeric|isprintable|istitle|" +
    "ljust|maketrans|rindex|rjust|swapcase|translate|fromkeys|real|imag|numerator|denominator|conjugate|bit_length|" +
    "bit_count|to_bytes|from_bytes|as_integer_ratio|is_integer|hex|fromhex|isdisjoint|mapping|grouper)$",
);

/** @param {string} message @returns {never} */
function valueError(message) {
  throw new PythonError("ValueError", message);
}

/** A method that is bound to its value, undefined when there is none. @param {Value} value @param {string} name */
function method(value, name) {
  /** @type {Record<string, [string, (...args: Value[]) => Value]>} */
  const methods =
    typeof value === "string" ? TEXT_METHODS : value instanceof Map ? DICT_METHODS
      : Array.isArray(value) && !(value instanceof View) ? LIST_METHODS : {};
  const isTyped = methods !== undefined && !(value instanceof Namespace) && value !== null && typeof value !== "function";
  const known = Object.hasOwn(methods, name) && !(value instanceof Tuple && name === "copy") ? methods[name] : undefined;
  if (known) {
    /** @type {Callable} */
    return (args, named) => known[1](value, ...bind(name, known[0], args, named));
  }
  const isContainer = value instanceof Map || (Array.isArray(value) && !(value instanceof Tuple || value instanceof View));
  if (isContainer && CHANGING.test(name)) {
    throw new PythonError("SecurityError", `'${name}' of a ${typeName(value)} is not allowed: it would change it`);
  }
  return isTyped && MISSING.test(name) ? unsupported(`'${name}' of a ${typeName(value)}`) : undefined;
}

/** @param {Value} value @param {string} name */
function attribute(value, name) {
  if (name.startsWith("_")) {
    throw new PythonError("SecurityError", `access to '${name}' of a ${typeName(value)} is not allowed`);
  }
  if (value instanceof Undefined) return value.fail();
  if (value instanceof Namespace) return value.values.get(name);
  if (typeof value === "function") return /** @type {Value} */ (value)[`.${name}`];
  return method(value, name);
}

/** @param {Value} value @param {Value} key */
function item(value, key) {
  if (value instanceof Undefined) return value.fail();
  if (value instanceof Map) return value.get(key instanceof Float && Number.isInteger(key.value) ? key.value : key);
  const isSequence = typeof value === "string" || (Array.isArray(value) && !(value instanceof View));
  if (!isSequence || (typeof key !== "number" && typeof key !== "boolean")) return undefined;
  return (typeof value === "string" ? [...value] : value).at(Number(key));
}

/** `value.name`: a method first, as in Python, then an entry. @param {Value} value @param {string} name @returns {Value} */
export function dotted(value, name) {
  const found = attribute(value, name);
  if (found !== undefined) return found;
  const entry = item(value, name);
  return entry === undefined ? missing(value, name) : entry;
}

/** `value[key]`: an entry first, then an attribute. @param {Value} value @param {Value} key @returns {Value} */
export function subscript(value, key) {
  const entry = item(value, key);
  if (entry !== undefined) return entry;
  const found = typeof key === "string" ? attribute(value, key) : undefined;
  return found === undefined ? missing(value, key) : found;
}

/** @param {Value} value @param {Value} key */
function missing(value, key) {
  const kind = typeName(value);
  return new Undefined(
    typeof key === "string" ? `'${kind} object' has no attribute '${key}'` : `${kind} object has no element ${text(key)}`,
  );
}

/** `value[start:stop:step]`. @param {Value} value @param {Value[]} bounds */
export function slice(value, [start, stop, step]) {
  if (value instanceof Undefined) value.fail();
  if (typeof value !== "string" && (!Array.isArray(value) || value instanceof View)) {
    typeError(`'${typeName(value)}' object is not subscriptable`);
  }
  const items = iterate(value);
  const size = lengthOf(value);
  const by = step ?? 1;
  for (const bound of [start, stop, by]) {
    if (bound !== undefined && bound !== null && typeof bound !== "number") typeError("slice indices must be integers");
  }
  if (by === 0) valueError("slice step cannot be zero");
  const [least, most] = by > 0 ? [0, size] : [-1, size - 1];
  /** @param {Value} bound @param {number} other */
  const clamp = (bound, other) =>
    bound === undefined || bound === null ? other : Math.max(least, Math.min(most, bound < 0 ? bound + size : bound));
  const [from, to] = [clamp(start, by > 0 ? 0 : size - 1), clamp(stop, by > 0 ? size : -1)];
  const taken = [];
  for (let at = from; by > 0 ? at < to : at > to; at += by) taken.push(items[at]);
  return typeof value === "string" ? taken.join("") : value instanceof Tuple ? tuple(...taken) : taken;
}

