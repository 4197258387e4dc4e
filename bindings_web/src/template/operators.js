/** The operators of Python on the values of a chat template. */

import { formatPercent } from "./formats.js";
import { compare, Float, isEqual, isSequence, Markup, numberOf, PythonError, Range, text, Tuple, tuple, typeError, typeName, Undefined, unsupported, whole } from "./values.js";

/** @typedef {import("./values.js").Value} Value */

/** @type {Record<string, (a: number, b: number) => number>} */
const ARITHMETIC = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => a / nonZero(b),
  "//": (a, b) => Math.floor(a / nonZero(b)),
  "%": (a, b) => (a - b * Math.floor(a / nonZero(b))) || (b < 0 ? -0 : 0), // the sign of b, as in Python
  "**": (a, b) => (Number.isInteger(b) ? a ** b : unsupported("a power with a fraction")), // its last digit differs
};
/** @type {Record<string, (order: number) => boolean>} */
const ORDERS = { "<": (o) => o < 0, "<=": (o) => o <= 0, ">": (o) => o > 0, ">=": (o) => o >= 0 };

/** @param {number} value */
function nonZero(value) {
  if (value === 0) throw new PythonError("ZeroDivisionError", "division by zero");
  return value;
}

/** @param {string} operator @param {Value} left @param {Value} right @returns {Value} */
export function operate(operator, left, right) {
  if (operator === "==") return isEqual(left, right);
  if (operator === "!=") return !isEqual(left, right);
  if (operator === "~") return text(left) + text(right);
  if (Object.hasOwn(ORDERS, operator)) return ORDERS[operator](compare(left, right, operator));
  for (const value of [left, right]) if (value instanceof Undefined && !(operator === "%" && typeof left === "string")) value.fail();
  const [a, b] = [numberOf(left), numberOf(right)];
  if (a !== null && b !== null) return arithmetic(operator, a, b, left instanceof Float || right instanceof Float);
  return sequences(operator, left, right) ?? typeError(`unsupported operand type(s) for ${operator}: '${typeName(left)}' and '${typeName(right)}'`);
}

/** @param {string} operator @param {number} a @param {number} b @param {boolean} isFloat */
function arithmetic(operator, a, b, isFloat) {
  if (!Object.hasOwn(ARITHMETIC, operator)) return unsupported(`the operator '${operator}'`);
  const value = ARITHMETIC[operator](a, b);
  if (!Number.isFinite(value) && Number.isFinite(a) && Number.isFinite(b)) throw new PythonError("OverflowError", "the result is too large, or no real number");
  return isFloat || operator === "/" || (operator === "**" && b < 0) ? new Float(value) : whole(value + 0);
}

/** @type {Record<string, string>} */
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;" };

/** A text that is marked safe, and another: what is not marked is escaped. @param {string} operator @param {Value} left @param {Value} right @returns {Value | undefined} */
function markup(operator, left, right) {
  if (operator === "%" && typeof left === "string") return formatPercent(left, [right]);
  if (operator !== "+") return unsupported(`'${operator}' with a text that is marked safe`);
  const parts = [left, right].map((part) => (typeof part === "string" ? part.replace(/[&<>"']/g, (sign) => ESCAPES[sign]) : part instanceof Markup ? part.text : null));
  return parts.every((part) => typeof part === "string") ? new Markup(parts.join("")) : undefined;
}

/** @param {string} operator @param {Value} left @param {Value} right @returns {Value | undefined} */
function sequences(operator, left, right) {
  if (left instanceof Markup || right instanceof Markup) return markup(operator, left, right);
  if (operator === "%" && typeof left === "string") return formatPercent(left, right instanceof Tuple ? Array.from(right) : [right]);
  if (operator === "+") {
    if (typeof left === "string" && typeof right === "string") return left + right;
    const areLists = isSequence(left) && isSequence(right) && typeName(left) === typeName(right) && !(left instanceof Range);
    if (areLists) return left instanceof Tuple ? tuple(...left, ...right) : [...left, ...right];
  }
  if (operator !== "*") return undefined;
  const [value, count] = typeof left === "number" || typeof left === "boolean" ? [right, left] : [left, right];
  if (typeof count !== "number" && typeof count !== "boolean") return undefined;
  const times = Number(count);
  if (times * (value?.length ?? 0) > 1e6) throw new PythonError("OverflowError", "a repeated text or list of more than 1,000,000 items");
  if (typeof value === "string") return value.repeat(Math.max(0, times));
  if (!isSequence(value) || value instanceof Range) return undefined;
  const items = Array.from({ length: Math.max(0, times) }, () => Array.from(value)).flat();
  return value instanceof Tuple ? tuple(...items) : items;
}
