/** Python's json.dumps for the values of a chat template: models saw its very spaces in training. */

import { Float, isSequence, isTrue, Markup, numberOf, Range, text, typeError, typeName } from "./values.js";

/** @typedef {import("./values.js").Value} Value */

/** @type {Record<string, string>} */
const SHORT = { '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f" };

/**
 * @param {Value} value
 * @param {{ensure_ascii?: Value, indent?: Value, separators?: Value, sort_keys?: Value}} options as Python's
 */
export function toJson(value, { ensure_ascii = false, indent = null, separators = null, sort_keys = false } = {}) {
  const isIndented = indent !== null;
  if (isIndented && typeof indent !== "string" && numberOf(indent) === null) typeError("indent is no number and no text");
  const step = typeof indent === "string" ? indent : " ".repeat(Math.max(0, numberOf(indent) ?? 0));
  const [between, colon] = separators ?? [isIndented ? "," : ", ", ": "];
  const odd = isTrue(ensure_ascii) ? /["\\]|[^ -~]/g : /["\\\x00-\x1f]/g;

  /** @param {string} string */
  const quoted = (string) =>
    `"${string.replace(odd, (unit) => SHORT[unit] ?? `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)}"`;

  /** @param {string[]} items @param {string} open @param {string} close @param {string} margin */
  const listed = (items, open, close, margin) => {
    if (!items.length) return open + close;
    if (!isIndented) return open + items.join(between) + close;
    return `${open}\n${margin}${step}${items.join(`${between}\n${margin}${step}`)}\n${margin}${close}`;
  };

  /** @param {Value} item @param {string} margin @returns {string} */
  const write = (item, margin) => {
    if (item === null) return "null";
    if (item instanceof Markup) return quoted(item.text);
    if (typeof item === "string") return quoted(item);
    if (typeof item === "boolean") return String(item);
    if (item instanceof Float && !Number.isFinite(item.value)) {
      return Number.isNaN(item.value) ? "NaN" : item.value > 0 ? "Infinity" : "-Infinity";
    }
    if (numberOf(item) !== null) return text(item);
    if (item instanceof Map) {
      const entries = [...item].map(([name, entry]) => [typeof name === "string" ? name : write(name, ""), entry]);
      if (isTrue(sort_keys)) entries.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
      return listed(entries.map(([name, entry]) => quoted(name) + colon + write(entry, margin + step)), "{", "}", margin);
    }
    if (isSequence(item) && !(item instanceof Range)) {
      return listed(Array.from(item, (entry) => write(entry, margin + step)), "[", "]", margin);
    }
    return typeError(`Object of type ${typeName(item)} is not JSON serializable`);
  };
  return write(value, "");
}
