/** Jinja's filters and tests, as far as chat templates use them; another one is an error, never a guess. */

import { formatPercent } from "./formats.js";
import { toJson } from "./json.js";
import { attribute, bind, dotted, subscript } from "./methods.js";
import { capitalize, lines, replace, strip } from "./strings.js";
import {
  compare, Float, hashable, isEqual, isSequence, isTrue, iterate, Lazy, lengthOf, Markup, numberOf, PythonError, text, Tuple, tuple, typeError,
  typeName, Undefined, unmarked, unsupported, whole,
} from "./values.js";

/** @typedef {import("./values.js").Value} Value */
/** @typedef {import("./methods.js").Named} Named */

/** What a filter or a test may ask for besides its arguments. @type {Record<string, (value: Value, ...args: Value[]) => boolean>} */
export const TESTS = {
  defined: (v) => !(v instanceof Undefined),
  undefined: (v) => v instanceof Undefined,
  none: (v) => v === null,
  boolean: (v) => typeof v === "boolean",
  true: (v) => v === true,
  false: (v) => v === false,
  string: (v) => typeof v === "string",
  number: (v) => numberOf(v) !== null,
  integer: (v) => typeof v === "number",
  float: (v) => v instanceof Float,
  mapping: (v) => v instanceof Map,
  sequence: (v) => typeof v === "string" || v instanceof Map || v instanceof Undefined || isSequence(v),
  iterable: (v) => typeof v === "string" || v instanceof Map || v instanceof Undefined || v instanceof Lazy || Array.isArray(v),
  callable: (v) => typeof v === "function" || v instanceof Undefined,
  odd: (v) => Math.abs(need(v) % 2) === 1,
  even: (v) => need(v) % 2 === 0,
  divisibleby: (v, by) => need(v) % need(by) === 0,
  lower: (v) => /\p{Ll}/u.test(text(v)) && !/\p{Lu}/u.test(text(v)),
  upper: (v) => /\p{Lu}/u.test(text(v)) && !/\p{Ll}/u.test(text(v)),
  eq: isEqual,
  ne: (a, b) => !isEqual(a, b),
  lt: (a, b) => compare(a, b, "<") < 0,
  le: (a, b) => compare(a, b, "<=") <= 0,
  gt: (a, b) => compare(a, b, ">") > 0,
  ge: (a, b) => compare(a, b, ">=") >= 0,
  in: (v, many) => isIn(v, many),
  sameas: (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b)),
};
const SAME = { equalto: "eq", "==": "eq", "!=": "ne", "<": "lt", lessthan: "lt", "<=": "le", ">": "gt", greaterthan: "gt", ">=": "ge" };
for (const [name, other] of Object.entries(SAME)) TESTS[name] = TESTS[other];

/** @param {Value} value */
function need(value) {
  if (value instanceof Undefined) value.fail();
  return numberOf(value) ?? typeError(`a number is needed, found a ${typeName(value)}`);
}

/** Python's `in`. @param {Value} value @param {Value} many @returns {boolean} */
export function isIn(value, many) {
  [value, many] = [unmarked(value), unmarked(many)];
  if (many instanceof Map) return many.has(hashable(value));
  if (typeof many !== "string") return iterate(many).some((item) => isEqual(item, value));
  return typeof value === "string" ? many.includes(value) : typeError(`'in <string>' requires string as left operand, not ${typeName(value)}`);
}

/** @param {string} name @returns {(value: Value, ...args: Value[]) => boolean} */
export function testNamed(name) {
  if (!Object.hasOwn(TESTS, name)) return unsupported(`the test '${name}'`);
  return (value, ...args) => TESTS[name](unmarked(value), ...args.map(unmarked));
}

/** A dotted path such as "function.name" or "0". @param {Value} path @returns {(item: Value) => Value} */
function getter(path) {
  const parts = typeof path === "number" ? [path] : text(path).split(".").map((part) => (/^\d+$/.test(part) ? Number(part) : part));
  return (item) => parts.reduce((value, part) => subscript(value, part), item);
}

/** @param {Value} isSensitive @returns {(value: Value) => Value} */
const folded = (isSensitive) => (value) => (typeof value === "string" && !isTrue(isSensitive ?? false) ? value.toLowerCase() : value);

/** @param {Value} items @param {Value} reverse @param {(item: Value) => Value} key */
function sorted(items, reverse, key) {
  const sign = isTrue(reverse ?? false) ? -1 : 1;
  return iterate(items).map((item) => [key(item), item]).sort(([a], [b]) => sign * compare(a, b)).map(([, item]) => item);
}

/** @param {Value} value @param {boolean} wanted @param {Value[]} args the test's name and arguments @param {(item: Value) => Value} [of] */
function selected(value, wanted, args, of = (item) => item) {
  if (!isTrue(value)) return new Lazy([]); // none, too
  const [name, ...rest] = args;
  const test = name === undefined ? isTrue : testNamed(name);
  return new Lazy(iterate(value).filter((item) => test(of(item), ...rest) === wanted));
}

/** @param {Value} value @param {Value[]} args @param {Named} named */
function mapped(value, args, named) {
  if (!isTrue(value)) return new Lazy([]); // none, too
  if (named.has("attribute")) {
    const of = getter(named.get("attribute"));
    return new Lazy(iterate(value).map(of).map((item) => (item instanceof Undefined && named.has("default") ? named.get("default") : item)));
  }
  const [name, ...rest] = args;
  if (name === undefined) typeError("map requires a filter argument");
  return new Lazy(iterate(value).map((item) => filter(name, item, rest, named)));
}

/** @param {Value} value @param {Value} [other] @param {Value} [base] */
function toInt(value, other = 0, base = 10) {
  if (value instanceof Undefined) value.fail();
  if (typeof value === "string" && base !== 10) return unsupported("the filter 'int' with another base than 10");
  const number = typeof value === "string" ? (/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(value) ? Number(value) : NaN) : numberOf(value) ?? NaN;
  return Number.isFinite(number) ? whole(Math.trunc(number) + 0) : other;
}

/** @param {Value} value @param {Value} [width] @param {Value} [first] @param {Value} [blank] */
function indent(value, width = 4, first = false, blank = false) {
  if (typeof value !== "string") typeError(`'indent' is for text, not for a ${typeName(value)}`);
  const margin = typeof width === "string" ? width : " ".repeat(width);
  const [head = "", ...rest] = lines(`${value}\n`);
  const tail = rest.map((line) => `\n${line || isTrue(blank) ? margin : ""}${line}`).join("");
  return (isTrue(first) ? margin : "") + head + tail;
}

/** @param {Value} value @param {Value} [precision] @param {Value} [way] */
function rounded(value, precision = 0, way = "common") {
  const [scale, number] = [10 ** precision, need(value)];
  if (way === "common" && !(value instanceof Float)) return precision < 0 ? unsupported("rounding a whole number to tens") : number;
  if (way !== "common") return new Float((way === "ceil" ? Math.ceil : Math.floor)(number * scale) / scale);
  const near = Math.round(number * scale);
  const isHalf = Math.abs(number * scale % 1) === 0.5; // Python rounds a half to the even neighbour
  return new Float((isHalf && near % 2 ? near - 1 : near) / scale);
}

/** @param {Value} value @param {Value} attribute */
function grouped(value, attribute) {
  const of = getter(attribute);
  /** @type {[Value, Value[]][]} */
  const groups = [];
  for (const item of sorted(value, false, (entry) => folded(false)(of(entry)))) {
    const key = of(item);
    if (groups.length && isEqual(folded(false)(groups[groups.length - 1][0]), folded(false)(key))) groups[groups.length - 1][1].push(item);
    else groups.push([key, [item]]);
  }
  return groups.map(([key, items]) => tuple(key, items));
}

/** @param {Value} key */
function checkHash(key) {
  if (key instanceof Tuple) Array.from(key, checkHash);
  else if (!(key instanceof Float)) hashable(key);
}

/** @param {Value[]} items @param {Value} isSensitive @param {Value} attribute */
function distinct(items, isSensitive, attribute) {
  /** @type {Value[]} */
  const seen = [];
  const of = attribute === undefined ? (/** @type {Value} */ item) => item : getter(attribute);
  return items.filter((item) => {
    const key = folded(isSensitive)(of(item));
    checkHash(key);
    return !seen.some((other) => isEqual(other, key)) && seen.push(key);
  });
}

/** @param {Value[]} items @param {number} at @param {string} what what to say is not there */
const endOf = (items, at, what) => (items.length ? items.at(at) : new Undefined(`${what}, sequence was empty.`));

/** By name: the signature, and what it does. @type {Record<string, [string, (value: Value, ...args: Value[]) => Value]>} */
const FILTERS = {
  abs: ["", (v) => (v instanceof Float ? new Float(Math.abs(v.value)) : Math.abs(need(v)))],
  attr: ["name", (v, name) => attribute(v, text(name)) ?? new Undefined(`no attribute '${text(name)}'`)],
  capitalize: ["", (v) => capitalize(text(v))],
  default: ["default_value boolean", (v, other = "", all = false) => (v instanceof Undefined || (isTrue(all) && !isTrue(v)) ? other : v)],
  dictsort: ["case_sensitive by reverse", (v, sensitive, by = "key", reverse = false) =>
    sorted(dotted(v, "items")([], new Map()), reverse, (pair) => folded(sensitive)(pair[by === "value" ? 1 : 0]))],
  first: ["", (v) => endOf(iterate(v), 0, "No first item")],
  float: ["default", (v, other = new Float(0)) => {
    if (v instanceof Undefined) v.fail();
    const number = typeof v === "string" ? (v.trim() ? Number(v) : NaN) : numberOf(v) ?? NaN;
    return Number.isNaN(number) ? other : new Float(number);
  }],
  groupby: ["attribute", grouped],
  indent: ["width first blank", (v, width, first, blank) => indent(v, width, first, blank)],
  int: ["default base", toInt],
  items: ["", (v) => (v instanceof Undefined ? new Lazy([]) : v instanceof Map ? new Lazy(iterate(dotted(v, "items")([], new Map()))) : typeError("Can only get item pairs from a mapping."))],
  join: ["d attribute", (v, between = "", attribute) => iterate(v).map(attribute === undefined ? (item) => item : getter(attribute)).map(text).join(text(between))],
  last: ["", (v) => (v instanceof Lazy ? typeError("'generator' object is not reversible") : endOf(iterate(v), -1, "No last item"))],
  length: ["", lengthOf],
  list: ["", (v) => iterate(v)],
  lower: ["", (v) => text(v).toLowerCase()],
  max: ["", (v) => endOf(sorted(v, true, folded(false)), 0, "No aggregated item")],
  min: ["", (v) => endOf(sorted(v, false, folded(false)), 0, "No aggregated item")],
  replace: ["old new count", (v, old, fresh, most) => replace(text(v), text(old), text(fresh), most)],
  reverse: ["", (v) => (typeof v === "string" ? [...v].reverse().join("") : new Lazy(iterate(v).reverse(), "list_reverseiterator"))],
  round: ["precision method", rounded],
  safe: ["", (v) => (v instanceof Markup ? v : new Markup(text(v)))],
  sort: ["reverse case_sensitive attribute", (v, reverse, sensitive, attribute) =>
    sorted(v, reverse, attribute === undefined || attribute === null ? folded(sensitive) : (item) => folded(sensitive)(getter(attribute)(item)))],
  string: ["", (v) => (v instanceof Markup ? v : text(v))],
  sum: ["attribute start", (v, attribute, start = 0) => {
    const numbers = iterate(v).map(attribute === undefined || attribute === null ? (item) => item : getter(attribute));
    const total = numbers.reduce((sum, item) => sum + need(item), need(start));
    return [start, ...numbers].some((item) => item instanceof Float) ? new Float(total) : whole(total);
  }],
  title: ["", (v) => text(v).split(/([-\s({[<]+)/).map((part) => capitalize(part)).join("")],
  tojson: ["ensure_ascii indent separators sort_keys", (v, ensure_ascii, indent, separators, sort_keys) => toJson(v, { ensure_ascii, indent, separators, sort_keys })],
  trim: ["chars", (v, letters) => strip(text(v), letters)],
  unique: ["case_sensitive attribute", (v, sensitive, attribute) => new Lazy(distinct(iterate(v), sensitive, attribute))],
  upper: ["", (v) => text(v).toUpperCase()],
};
const MARKED = /^(capitalize|lower|title|trim|upper)$/; // filters whose results are marked again
const OF_MARKUP = ["count", "d", "default", "length", "list", "safe", "string", "tojson"];
FILTERS.d = FILTERS.default;
FILTERS.count = FILTERS.length;

/** Apply a filter. @param {string} name @param {Value} value @param {Value[]} args @param {Named} named @returns {Value} */
export function filter(name, value, args, named) {
  if (value instanceof Markup && MARKED.test(name)) return new Markup(filter(name, value.text, args, named));
  if (value instanceof Markup && !OF_MARKUP.includes(name)) return unsupported(`the filter '${name}' of a text that is marked safe`);
  if (name === "select" || name === "reject") return selected(value, name === "select", args);
  if (name === "selectattr" || name === "rejectattr") {
    const [path, ...rest] = args;
    return selected(value, name === "selectattr", rest, getter(path));
  }
  if (name === "map") return mapped(value, args, named);
  if (name === "format") return named.size ? unsupported("the filter 'format' with names") : formatPercent(text(value), args);
  if (!Object.hasOwn(FILTERS, name)) throw new PythonError("TemplateRuntimeError", `No filter named '${name}' in a browser.`);
  const [signature, apply] = FILTERS[name];
  return apply(value, ...bind(name, signature, args, named));
}

