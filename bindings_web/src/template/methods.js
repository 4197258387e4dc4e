/** What lies behind a dot or in square brackets in a chat template: the methods of Python's texts, dicts and lists. */

import { formatText } from "./formats.js";
import { TEXT_METHODS } from "./strings.js";
import {
  Float, hashable, isEqual, isSequence, iterate, lengthOf, Markup, Namespace, PythonError, Range, text, tuple, Tuple, typeError, typeName, Undefined,
  unmarked, unsupported, valueError, View,
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

/** @param {string} kind @returns {View} */
function view(kind, /** @type {Iterable<Value>} */ items) {
  return Object.assign(View.from(items), { kind });
}

/** @type {Record<string, [string, (dict: Map<Value, Value>, ...args: Value[]) => Value]>} */
const DICT_METHODS = {
  get: ["key default", (dict, key, other = null) => (dict.has(hashable(key)) ? dict.get(hashable(key)) : other)],
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
  "^(casefold|center|encode|expandtabs|format_map|isascii|isdecimal|isidentifier|isnumeric|isprintable|istitle|" +
    "ljust|maketrans|rindex|rjust|swapcase|translate|fromkeys|real|imag|numerator|denominator|conjugate|bit_length|" +
    "bit_count|to_bytes|from_bytes|as_integer_ratio|is_integer|hex|fromhex|isdisjoint|mapping|grouper)$",
);

const MARKED = /^([lr]?strip|upper|lower|title|capitalize)$/; // of a text that is marked safe, as their results are
const UNMARKED = /^(startswith|endswith|r?find|count|is[a-z]+)$/;

/** A method that is bound to its value, undefined when there is none. @param {Value} value @param {string} name @returns {Value} */
function method(value, name) {
  if (typeof value === "string" && name === "format") return /** @type {Callable} */ ((args, named) => formatText(value, args, named));
  if (value instanceof Markup && MARKED.test(name)) {
    return /** @type {Callable} */ ((args, named) => new Markup(method(value.text, name)(args, named)));
  }
  if (value instanceof Markup && UNMARKED.test(name)) return method(value.text, name);
  if (value instanceof Markup && (Object.hasOwn(TEXT_METHODS, name) || /^(format|unescape|striptags|escape)$/.test(name))) {
    return unsupported(`'${name}' of a text that is marked safe`);
  }
  /** @type {Record<string, [string, (...args: Value[]) => Value]>} */
  const methods =
    typeof value === "string" ? TEXT_METHODS : value instanceof Map ? DICT_METHODS
      : isSequence(value) ? LIST_METHODS : {};
  const isTyped = methods !== undefined && !(value instanceof Namespace) && value !== null && typeof value !== "function";
  const known = Object.hasOwn(methods, name) && !((value instanceof Tuple || value instanceof Range) && name === "copy") ? methods[name] : undefined;
  if (known) {
    /** @type {Callable} */
    return (args, named) => known[1](value, ...bind(name, known[0], args, named));
  }
  const isContainer = value instanceof Map || (isSequence(value) && !(value instanceof Tuple || value instanceof Range));
  if (isContainer && CHANGING.test(name)) {
    throw new PythonError("SecurityError", `'${name}' of a ${typeName(value)} is not allowed: it would change it`);
  }
  return isTyped && MISSING.test(name) ? unsupported(`'${name}' of a ${typeName(value)}`) : undefined;
}

/** A method, or a value of a namespace. @param {Value} value @param {string} name @returns {Value} */
export function attribute(value, name) {
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
  if (value instanceof Map) return value.get(key instanceof Float && Number.isInteger(key.value) ? key.value : unmarked(key));
  if (value instanceof Markup && typeof key === "number") return unsupported("a letter of a text that is marked safe");
  const isIndexed = typeof value === "string" || isSequence(value);
  if (!isIndexed || (typeof key !== "number" && typeof key !== "boolean")) return undefined;
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
  const name = unmarked(key);
  const found = typeof name === "string" ? attribute(value, name) : undefined;
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
  if (value instanceof Markup) return unsupported("a part of a text that is marked safe");
  if (typeof value !== "string" && !isSequence(value)) {
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
  return typeof value === "string" ? taken.join("") : value instanceof Tuple ? tuple(...taken) : value instanceof Range ? Range.from(taken) : taken;
}

