// Whether no value fulfils two schemas, as far as their types and constants show.

import { demands, same, typesOf } from "./keywords.js";

/** @import { Schema } from "./keywords.js" */

/**
 * @param {Schema | null} one @param {Schema | null} other neither a reference; null: nothing fulfils it
 * @param {string} path
 * @returns {boolean}
 */
export function areApart(one, other, path) {
  if (!one || !other) return true;
  const [left, right] = [valuesOf(one), valuesOf(other)];
  if (left && right) return !left.some((value) => right.some((another) => same(value, another)));
  if (!typed(one) || !typed(other)) return false;
  const [types, others] = [typesOf(one, path), typesOf(other, path)];
  const shared = types.filter((type) => others.some((another) => covers(type, another)));
  if (!shared.length) return true;
  return shared.every((type) => type === "object") && differInProperty(one, other);
}

/** @param {Schema} schema */
function typed(schema) {
  return demands(schema).some((keyword) => keyword === "type") || valuesOf(schema) !== null;
}

/** @param {Schema} schema @returns {unknown[] | null} */
function valuesOf(schema) {
  return "const" in schema ? [schema.const] : Array.isArray(schema.enum) ? schema.enum : null;
}

/** @param {string} one @param {string} other */
function covers(one, other) {
  const [left, right] = [one, other].map((type) => (type === "integer" ? "number" : type));
  return left === right;
}

/** @param {Schema} one @param {Schema} other */
function differInProperty(one, other) {
  const names = (one.required ?? []).filter((/** @type {string} */ name) => (other.required ?? []).includes(name));
  return names.some((/** @type {string} */ name) => {
    const [left, right] = [one, other].map((schema) => valuesOf(schema.properties?.[name] ?? {}));
    return left && right && !left.some((value) => right.some((another) => same(value, another)));
  });
}
