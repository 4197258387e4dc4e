// What a schema says of values without parts, and its keywords that are numbers and lists, checked.

import { choice } from "./expression.js";
import { demands, refused, same, typesOf } from "./keywords.js";
import { FORMAT_NAMES, formatted, matching, strings } from "./strings.js";

/** @import { Expression } from "./expression.js" */
/** @import { Schema } from "./keywords.js" */
/** @import { Bounds } from "./numbers.js" */

/** @param {Schema} schema @param {string} path @returns {Expression} */
export function stringOf(schema, path) {
  const { pattern, format, minLength, maxLength } = schema;
  const given = Object.entries({ pattern, format, length: minLength ?? maxLength }).filter(
    ([, value]) => value !== undefined,
  );
  if (given.length > 1)
    throw refused(given[0][0], path, `cannot be followed together with '${given[1][0]}'. Put both into one 'pattern'.`);
  if (pattern !== undefined) {
    try {
      return matching(String(pattern));
    } catch (error) {
      throw refused("pattern", path, `cannot be followed: ${/** @type {Error} */ (error).message}`);
    }
  }
  if (format === undefined)
    return strings(count(schema, "minLength", path, 0), count(schema, "maxLength", path, Infinity));
  if (!FORMAT_NAMES.includes(format))
    throw refused("format", path, `is ${JSON.stringify(format)}; supported: ${FORMAT_NAMES.join(", ")}`);
  return formatted(format);
}

/** @param {Schema} schema @param {string} path @returns {Expression} the values of its enum or const */
export function literals(schema, path) {
  const beside = demands(schema).find((keyword) => !["enum", "const", "type"].includes(keyword));
  if (beside)
    throw refused(beside, path, "beside 'enum' or 'const' is not supported. Leave out the values that it excludes.");
  let values = schema.enum === undefined ? [schema.const] : list(schema.enum, "enum", path);
  if ("const" in schema) values = values.filter((value) => same(value, schema.const));
  const types = schema.type === undefined ? null : typesOf(schema, path);
  return choice(
    ...values
      .filter((value) => !types || types.some((type) => isOf(value, type)))
      .map((value) => JSON.stringify(value)),
  );
}

/** @param {unknown} value @param {string} type */
function isOf(value, type) {
  if (type === "null") return value === null;
  if (type === "integer") return Number.isInteger(value);
  if (type === "array") return Array.isArray(value);
  if (type === "object") return typeof value === "object" && value !== null && !Array.isArray(value);
  return typeof value === type;
}

/** @param {Schema} schema @param {string} path @returns {Bounds} */
export function bounds(schema, path) {
  const low = { at: -Infinity, isOpen: false };
  const high = { at: Infinity, isOpen: false };
  for (const keyword of ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]) {
    const value = schema[keyword];
    if (value === undefined) continue;
    if (!Number.isFinite(value)) throw refused(keyword, path, `is ${JSON.stringify(value)}; expected a number`);
    const isOpen = keyword.startsWith("exclusive");
    const isLow = keyword.endsWith("inimum");
    const edge = isLow ? low : high;
    if (isLow ? value > edge.at : value < edge.at) Object.assign(edge, { at: value, isOpen });
    else if (value === edge.at) edge.isOpen ||= isOpen;
  }
  return { low: low.at, high: high.at, isLowOpen: low.isOpen, isHighOpen: high.isOpen };
}

/** @param {Schema} schema @param {string} keyword @param {string} path @param {number} absent @returns {number} */
export function count(schema, keyword, path, absent) {
  const value = schema[keyword] ?? absent;
  if (value !== absent && (!Number.isInteger(value) || value < 0))
    throw refused(keyword, path, `is ${JSON.stringify(value)}; expected 0 or more`);
  return value;
}

/** @param {unknown} value @param {string} keyword @param {string} path @param {number} [least] @returns {any[]} */
export function list(value, keyword, path, least = 1) {
  if (!Array.isArray(value) || value.length < least)
    throw refused(keyword, path, `is ${JSON.stringify(value)}; expected a list`);
  return value;
}
