/** Python's format strings: the method "format" of a text, and the operator %. */

import { dotted, subscript } from "./methods.js";
import { Float, numberOf, PythonError, repr, text, typeError, typeName, unsupported, valueError, whole } from "./values.js";

/** @typedef {import("./values.js").Value} Value */
/** @typedef {import("./methods.js").Named} Named */

const MOST_WIDTH = 100_000; // as in embedllm/text/jinja_sandbox.py
const SPEC = /^(?:(.)?([<>=^]))?([-+ ])?(#)?(0)?(\d+)?([,_])?(?:\.(\d+))?([a-zA-Z%])?$/su;
const PERCENT = /%(?:\(|([-+ #0]*)(\d+|\*)?(?:\.(\d+|\*))?(.?))/gsu;
const FIELD = /\{\{|\}\}|\{([^{}!:]*)(?:!([^{}:]*))?(?::([^{}]*))?\}|[{}]/gsu;
const BASES = /** @type {Record<string, number>} */ ({ b: 2, o: 8, x: 16, X: 16 });

/** `text.format(...)`, as Jinja's sandbox has it. @param {string} form @param {Value[]} args @param {Named} named */
export function formatText(form, args, named) {
  let next = 0;
  let isNumbered = false;
  return form.replace(FIELD, (whole, field, conversion, spec = "") => {
    if (whole === "{{" || whole === "}}") return whole[0];
    if (field === undefined) return unsupported(`a '${whole}' alone, or one field in another, in a format`);
    const [, first, path] = /** @type {RegExpMatchArray} */ (field.match(/^([^.[]*)(.*)$/su));
    if (/^\d+$/.test(first)) isNumbered = true;
    if (first === "" && isNumbered) valueError("cannot switch from manual field specification to automatic field numbering");
    if (/^\d+$/.test(first) && next > 0) valueError("cannot switch from automatic field numbering to manual field specification");
    const place = first === "" ? next++ : /^\d+$/.test(first) ? Number(first) : null;
    if (place === null ? !named.has(first) : place >= args.length) {
      throw new PythonError(place === null ? "KeyError" : "IndexError", `the format has '${whole}', and nothing is given for it`);
    }
    const value = followed(place === null ? named.get(first) : args[place], path);
    if (conversion !== undefined && conversion !== "r" && conversion !== "s") return unsupported(`'!${conversion}' in a format`);
    return formatValue(conversion === "r" ? repr(value) : conversion === "s" ? text(value) : value, spec);
  });
}

/** `.name` and `[key]` behind a field's name. @param {Value} value @param {string} path @returns {Value} */
function followed(value, path) {
  const steps = [...path.matchAll(/\.([^.[]+)|\[([^\]]+)\]/gsu)];
  if (steps.map(([step]) => step).join("") !== path) valueError(`the format has '${path}', expected .name or [key]`);
  return steps.reduce((at, [, name, key]) => (name ? dotted(at, name) : subscript(at, /^\d+$/.test(key) ? Number(key) : key)), value);
}

/** Python's format(value, spec). @param {Value} value @param {string} spec @returns {string} */
function formatValue(value, spec) {
  if (spec === "") return text(value);
  const parts = spec.match(SPEC);
  if (!parts) return unsupported(`':${spec}' in a format`);
  const [, fill, align, sign = "", alternate, zero, width = "0", group = "", precision, type = ""] = parts;
  if (alternate) return unsupported("'#' in a format");
  if (Number(width) > MOST_WIDTH || Number(precision ?? 0) > 100) throw new PythonError("SecurityError", `a format of a width of ${width}, or ${precision} digits`);
  const number = numberOf(value);
  if (number === null) {
    if (typeof value !== "string") return typeError(`unsupported format string passed to ${typeName(value)}.__format__`);
    if (sign || group || align === "=" || (type && type !== "s")) return valueError(`':${spec}' is no format of a text`);
    const letters = [...value].slice(0, precision === undefined ? undefined : Number(precision)).join("");
    return padded("", letters, fill ?? (zero ? "0" : " "), align ?? "<", Number(width));
  }
  const digits = grouped(numberText(value, Math.abs(number), type, precision, spec), group);
  const isNegative = number < 0 || Object.is(number, -0);
  const mark = isNegative && (number < 0 || value instanceof Float) ? "-" : sign === "-" ? "" : sign;
  if (group && zero) return unsupported("zeros in front of groups of digits in a format");
  return padded(mark, digits, fill ?? (zero ? "0" : " "), align ?? (zero ? "=" : ">"), Number(width));
}

/** @param {Value} value @param {number} size without its sign @param {string} type @param {string | undefined} precision @param {string} spec */
function numberText(value, size, type, precision, spec) {
  const isFloat = value instanceof Float;
  if (type === "f" || type === "F" || type === "%") {
    if (size >= 1e21 || !Number.isFinite(size)) return unsupported(`':${spec}' of ${size}`);
    const places = Number(precision ?? 6);
    return type === "%" ? `${fixed(size * 100, places)}%` : fixed(size, places);
  }
  if (precision !== undefined && !isFloat) return valueError("Precision not allowed in integer format specifier");
  if (isFloat && type === "" && precision === undefined) return text(new Float(size));
  if (isFloat && ["d", "x", "X", "o", "b", "c", "s"].includes(type)) return valueError(`Unknown format code '${type}' for object of type 'float'`);
  if (isFloat) return unsupported(`':${spec}' of a float`);
  if (type === "" || type === "d") return String(whole(size));
  if (!Object.hasOwn(BASES, type)) return unsupported(`':${spec}' of a whole number`);
  const digits = whole(size).toString(BASES[type]);
  return type === "X" ? digits.toUpperCase() : digits;
}

/** Rounded as Python does: of two as near, the even one. @param {number} size @param {number} places */
function fixed(size, places) {
  const exact = size.toFixed(Math.min(100, places + 30));
  const at = exact.indexOf(".") + 1 + places;
  if (!/^50*$/.test(exact.slice(at))) return size.toFixed(places);
  const low = exact.slice(0, at).replace(/\.$/, "");
  if (Number(low.at(-1)) % 2 === 0) return low;
  const up = (BigInt(low.replace(".", "")) + 1n).toString().padStart(places + 1, "0");
  return places ? `${up.slice(0, -places)}.${up.slice(-places)}` : up;
}

/** @param {string} digits @param {string} mark */
function grouped(digits, mark) {
  if (!mark) return digits;
  if (!/^\d+(\.\d*)?%?$/.test(digits)) return unsupported("groups of digits in another base than 10");
  const [head, ...tail] = digits.split(/(?=[.%])/);
  return head.replace(/\B(?=(\d{3})+$)/g, mark) + tail.join("");
}

/** @param {string} mark a sign, which stands before the padding of "=" @param {string} body @param {string} fill @param {string} align @param {number} width */
function padded(mark, body, fill, align, width) {
  const missing = Math.max(0, width - [...mark + body].length);
  const left = align === ">" || align === "=" ? missing : align === "^" ? missing >> 1 : 0;
  const [before, after] = [fill.repeat(left), fill.repeat(missing - left)];
  return align === "=" ? mark + before + body : before + mark + body + after;
}

/** `text % values`. @param {string} form @param {Value[]} args */
export function formatPercent(form, args) {
  const rest = [...args];
  const made = form.replace(PERCENT, (whole, flags, width = "", precision, mark) => {
    if (mark === "%" && whole === "%%") return "%";
    if (mark === undefined || `${width}${precision ?? ""}`.includes("*") || flags.includes("#")) return unsupported(`'${whole}' in a format`);
    if (!/^[srdifF]$/.test(mark)) return unsupported(`'${whole}' in a format`);
    if (!rest.length) return typeError("not enough arguments for format string");
    const value = rest.shift();
    const align = flags.includes("-") ? "<" : ">";
    const digits = precision === undefined ? "" : `.${precision}`;
    if (mark === "s" || mark === "r") return formatValue(mark === "s" ? text(value) : repr(value), `${align}${width}${digits}`);
    const number = numberOf(value);
    if (number === null) return typeError(`%${mark} format: a real number is required, not ${typeName(value)}`);
    const sign = flags.includes("+") ? "+" : flags.includes(" ") ? " " : "";
    const spec = `${flags.includes("0") && align === ">" ? "" : align}${sign}${flags.includes("0") && align === ">" ? "0" : ""}${width}`;
    if (mark === "f" || mark === "F") return formatValue(new Float(number), `${spec}${digits}f`);
    if (digits) return unsupported(`'${whole}' in a format`);
    return formatValue(Math.trunc(number) + 0, `${spec}d`);
  });
  return rest.length ? typeError("not all arguments converted during string formatting") : made;
}
