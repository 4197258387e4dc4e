/** What the values of a chat template are, and what Python says of them: as text, as truth, equal, in order.
 *
 * A template was written for Python, so that `{{ [1.0, none, 'a'] }}` has to give "[1.0, None, 'a']". Python's types
 * are here: null = None, boolean, string, number = int, Float = float, array = list, Tuple, Map = dict, View = what a
 * dict's methods give, Lazy = a generator, Undefined, Namespace, function = whatever can be called.
 */

/** @typedef {any} Value one of the above: templates have no types, so that each use looks at what it was given */

/** An error that Python would raise; `kind` is its class there. */
export class PythonError extends Error {
  /** @param {string} kind @param {string} message */
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** @param {string} message @returns {never} */
export function typeError(message) {
  throw new PythonError("TypeError", message);
}

/** @param {string} message @returns {never} */
export function valueError(message) {
  throw new PythonError("ValueError", message);
}

/** Something that Python's Jinja can do and this one cannot. @param {string} what @returns {never} */
export function unsupported(what) {
  throw new PythonError("NotSupported", `${what} is not supported in a browser`);
}

export class Float {
  /** @param {number} value */
  constructor(value) {
    this.value = value;
  }
}

export class Tuple extends Array {}

/** dict_keys, dict_values or dict_items. */
export class View extends Array {
  kind = "";
}

/** What range() gives. */
export class Range extends Array {
  /** What it looks like when printed, "" for a part of one. */
  text = "";
}

/** A generator: true whatever it holds, without a length, and empty once it was walked through. */
export class Lazy {
  /** @param {Value[]} items @param {string} [text] what it looks like when printed */
  constructor(items, text = "generator") {
    this.items = items;
    this.text = text;
  }
}

export class Undefined {
  /** @param {string} hint what was looked for */
  constructor(hint) {
    this.hint = hint;
  }

  /** @returns {never} */
  fail() {
    throw new PythonError("UndefinedError", this.hint);
  }
}

/** Text that `|safe` marked: what is added to it is escaped as HTML. */
export class Markup {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }
}

export class Namespace {
  /** @param {Map<string, Value>} values */
  constructor(values) {
    this.values = values;
  }
}

/** @param {Value[]} items @returns {Tuple} */
export const tuple = (...items) => Tuple.from(items);

/** A value of JavaScript as a template sees it: plain JSON, Maps included. @param {unknown} value @returns {Value} */
export function fromJson(value) {
  if (typeof value === "number") return Number.isInteger(value) ? value : new Float(value);
  if (Array.isArray(value)) return value.map(fromJson);
  if (value === undefined) return null;
  if (value === null || typeof value !== "object") return value;
  const entries = value instanceof Map ? [...value] : Object.entries(value);
  return new Map(entries.map(([name, item]) => [name, fromJson(item)]));
}

/** A text that is marked as it is without the mark; other values as they are. @param {Value} value @returns {Value} */
export const unmarked = (value) => (value instanceof Markup ? value.text : value);

/** @param {Value} value */
export function typeName(value) {
  if (value === null) return "NoneType";
  if (value instanceof View) return `dict_${value.kind}`;
  /** @type {[Function, string][]} */
  const classes = [[Range, "range"], [Tuple, "tuple"], [Array, "list"], [Map, "dict"], [Float, "float"], [Lazy, "generator"]];
  const names = { boolean: "bool", number: "int", string: "str", function: "function" };
  return (
    classes.find(([known]) => value instanceof known)?.[1] ??
    names[/** @type {keyof typeof names} */ (typeof value)] ?? value.constructor.name
  );
}

/** @param {Value} value */
export function isTrue(value) {
  if (value instanceof Float) return value.value !== 0;
  if (Array.isArray(value)) return value.length > 0;
  if (value instanceof Map) return value.size > 0;
  if (value instanceof Markup) return value.text !== "";
  return value instanceof Undefined ? false : Boolean(value);
}

/** Whether it is a list, a tuple or a range. @param {Value} value */
export const isSequence = (value) => Array.isArray(value) && !(value instanceof View);

/** The number that a value counts as, null when it is none; a bool is one. @param {Value} value */
export function numberOf(value) {
  if (value instanceof Float) return value.value;
  return typeof value === "number" || typeof value === "boolean" ? Number(value) : null;
}

/** @param {Value} left @param {Value} right @returns {boolean} */
export function isEqual(left, right) {
  const [a, b] = [numberOf(left), numberOf(right)];
  if (a !== null || b !== null) return a === b;
  if (left instanceof Undefined) return right instanceof Undefined;
  if (Array.isArray(left) && Array.isArray(right)) {
    return typeName(left) === typeName(right) && left.length === right.length && left.every((item, i) => isEqual(item, right[i]));
  }
  if (left instanceof Map && right instanceof Map) {
    return left.size === right.size && [...left].every(([name, item]) => right.has(name) && isEqual(item, right.get(name)));
  }
  return unmarked(left) === unmarked(right);
}

/** -1, 0 or 1, by code points for texts. @param {Value} left @param {Value} right @returns {number} */
export function compare(left, right, sign = "<") {
  const [a, b] = [numberOf(left), numberOf(right)];
  if (a !== null && b !== null) return Math.sign(a - b);
  const both = [left, right].map(unmarked);
  const areTexts = both.every((value) => typeof value === "string");
  if (areTexts || (both.every(isSequence) && typeName(left) === typeName(right) && !(left instanceof Range))) {
    const [first, second] = areTexts ? both.map((text) => [...text].map((letter) => letter.codePointAt(0))) : [left, right];
    const at = first.findIndex((/** @type {Value} */ item, /** @type {number} */ i) => i >= second.length || !isEqual(item, second[i]));
    if (at < 0) return first.length < second.length ? -1 : 0;
    return at >= second.length ? 1 : compare(first[at], second[at], sign);
  }
  for (const value of both) if (value instanceof Undefined) value.fail();
  return typeError(`'${sign}' not supported between instances of '${typeName(left)}' and '${typeName(right)}'`);
}

/** What a loop goes through. @param {Value} value @returns {Value[]} */
export function iterate(value) {
  if (typeof value === "string") return [...value];
  if (Array.isArray(value)) return Array.from(value);
  if (value instanceof Map) return [...value.keys()];
  if (value instanceof Undefined) return [];
  if (value instanceof Lazy) return value.items.splice(0);
  if (value instanceof Markup) return [...value.text];
  return typeError(`'${typeName(value)}' object is not iterable`);
}

/** @param {Value} value @returns {number} */
export function lengthOf(value) {
  if (value instanceof Undefined) return 0;
  if (typeof value === "string" || Array.isArray(value) || value instanceof Map || value instanceof Markup) return iterate(value).length;
  return typeError(`object of type '${typeName(value)}' has no len()`);
}

/** A key of a dict, or what is looked for in one. @param {Value} value @returns {Value} */
export function hashable(value) {
  const key = unmarked(value);
  if (key instanceof Map || (Array.isArray(key) && !(key instanceof Tuple || key instanceof Range))) typeError(`unhashable type: '${typeName(key)}'`);
  if (key instanceof Float && Number.isInteger(key.value)) return key.value;
  return key instanceof Float || Array.isArray(key) ? unsupported(`a ${typeName(key)} as a key`) : key;
}

/** @param {number} value */
function floatText(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const power = Number(value.toExponential().split("e")[1]);
  if (power < -4 || power >= 16) return value.toExponential().replace(/([+-])(\d)$/, "$10$2");
  // Python writes no exponent from 1e-4 on, JavaScript from 1e-7 on; both write the fewest digits that are exact
  const text = String(value);
  return Object.is(value, -0) ? "-0.0" : text.includes(".") ? text : `${text}.0`;
}

/** @param {string} text */
function quoted(text) {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  /** @type {Record<string, string>} */
  const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", [quote]: `\\${quote}` };
  const body = text.replace(/[\\'"]|(?! )[\p{C}\p{Z}]/gu, (letter) => {
    const code = /** @type {number} */ (letter.codePointAt(0));
    if (short[letter] || letter === "'" || letter === '"') return short[letter] ?? letter;
    const [mark, digits] = code < 256 ? ["x", 2] : code < 65536 ? ["u", 4] : ["U", 8];
    return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
  });
  return quote + body + quote;
}

/** Python's str(). @param {Value} value @returns {string} */
export function text(value) {
  if (typeof value === "string") return value;
  if (value instanceof Markup) return value.text;
  return value instanceof Undefined ? "" : repr(value);
}

/** Python's repr(). @param {Value} value @returns {string} */
export function repr(value) {
  if (value === null) return "None";
  if (typeof value === "string") return quoted(value);
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return String(whole(value));
  if (value instanceof Float) return floatText(value.value);
  if (value instanceof Undefined) return "Undefined";
  if (value instanceof Markup) return `Markup(${quoted(value.text)})`;
  if (value instanceof Map) return `{${[...value].map(([name, item]) => `${repr(name)}: ${repr(item)}`).join(", ")}}`;
  if (value instanceof Tuple) return `(${value.map(repr).join(", ")}${value.length === 1 ? "," : ""})`;
  if (value instanceof Range) return value.text || unsupported("printing a part of a range");
  if (value instanceof View) return `dict_${value.kind}([${Array.from(value, repr).join(", ")}])`;
  if (Array.isArray(value)) return `[${value.map(repr).join(", ")}]`;
  return unsupported(`printing a ${typeName(value)}`);
}

/** An int that JavaScript still holds exactly. @param {number} value */
export function whole(value) {
  return Number.isSafeInteger(value) ? value : unsupported("a whole number of more than 53 bits");
}
