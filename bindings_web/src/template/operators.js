/** The operators of Python on the values of a chat template. */

import { formatted } from "./filters.js";
import { compare, Float, isEqual, numberOf, PythonError, text, Tuple, tuple, typeError, typeName, Undefined, unsupported, View, whole } from "./values.js";

/** @typedef {import("./values.js").Value} Value */

/** @type {Record<string, (a: number, b: number) => number>} */
const ARITHMETIC = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => a / nonZero(b),
  "//": (a, b) => Math.floor(a / nonZero(b)),
  "%": (a, b) => a - b * Math.floor(a / nonZero(b)), // the sign of b, as in Python
  "**": (a, b) => a ** b,
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

/** @param {string} operator @param {Value} left @param {Value} right @returns {Value | undefined} */
function sequences(operator, left, right) {
  if (operator === "%" && typeof left === "string") return formatted(left, right instanceof Tuple ? Array.from(right) : [right]);
  if (operator === "+") {
    if (typeof left === "string" && typeof right === "string") return left + right;
    const areLists = Array.isArray(left) && Array.isArray(right) && typeName(left) === typeName(right) && !(left instanceof View);
    if (areLists) return left instanceof Tuple ? tuple(...left, ...right) : [...left, ...right];
  }
  if (operator !== "*") return undefined;
  const [value, count] = typeof left === "number" || typeof left === "boolean" ? [right, left] : [left, right];
  if (typeof count !== "number" && typeof count !== "boolean") return undefined;
  const times = Number(count);
  if (times * (value?.length ?? 0) > 1e6) throw new PythonError("OverflowError", "a repeated text or list of more than 1,000,000 items");
  if (typeof value === "string") return value.repeat(Math.max(0, times));
  if (!Array.isArray(value) || value instanceof View) return undefined;
  const items = Array.from({ length: Math.max(0, times) }, () => Array.from(value)).flat();
  return value instanceof Tuple ? tuple(...items) : items;
}
