// Which keywords of JSON schemas are followed, and two schemas as one.

/** @typedef {Record<string, any>} Schema an object schema: what a keyword holds is checked where it is used */

/** Of schemas in schemas; one that repeats itself would never end. */
export const DEEPEST = 64;

const TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"];
const STRUCTURE = ["type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"];
/** Keywords by the type they are about. @type {Record<string, string[]>} */
const BY_TYPE = {
  number: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
  string: ["minLength", "maxLength", "pattern", "format"],
  array: ["items", "prefixItems", "minItems", "maxItems"],
  object: ["properties", "required", "additionalProperties", "minProperties", "maxProperties"],
};
const ANNOTATIONS = ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator",
  "$schema", "$id", "$comment", "$defs", "definitions"]; // prettier-ignore
const FOLLOWED = new Set([...STRUCTURE, ...Object.values(BY_TYPE).flat()]);
const IGNORED = new Set(ANNOTATIONS);

/**
 * @param {string} keyword @param {string} path @param {string} problem
 * @returns {RangeError} that names keyword and place
 */
export function refused(keyword, path, problem) {
  return new RangeError(`JSON schema: '${keyword}' at ${path} ${problem}`);
}

/**
 * The schema as an object; null when nothing fulfils it.
 *
 * @param {unknown} schema
 * @param {string} path
 * @returns {Schema | null}
 * @throws RangeError for a keyword that is not followed
 */
export function known(schema, path) {
  if (schema === true) return {};
  if (schema === false) return null;
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) {
    throw new RangeError(`JSON schema: ${path} is ${JSON.stringify(schema)}; expected an object, true or false`);
  }
  for (const [keyword, value] of Object.entries(schema)) {
    if (keyword === "uniqueItems" && value === false) continue; // as without it
    if (!FOLLOWED.has(keyword) && !IGNORED.has(keyword) && !keyword.startsWith("x-")) {
      throw refused(keyword, path, "is not supported. Leave it out and check the reply yourself, or say it otherwise.");
    }
  }
  return schema;
}

/** Its keywords that demand something. @param {Schema} schema @returns {string[]} */
export function demands(schema) {
  return Object.keys(schema).filter((keyword) => FOLLOWED.has(keyword));
}

/**
 * The types it allows: those it names, or those that its other keywords are about, or all.
 *
 * @param {Schema} schema @param {string} path
 * @returns {string[]} "integer" is not listed beside "number"
 */
export function typesOf(schema, path) {
  if (schema.type !== undefined) {
    const types = [schema.type].flat();
    const odd = types.find((type) => !TYPES.includes(type));
    if (odd !== undefined || !types.length)
      throw refused("type", path, `is ${JSON.stringify(schema.type)}; expected ${TYPES.join(", ")}`);
    return types.includes("number") ? types.filter((type) => type !== "integer") : types;
  }
  const meant = Object.keys(BY_TYPE).filter((type) => BY_TYPE[type].some((keyword) => keyword in schema));
  return meant.length ? meant : TYPES.filter((type) => type !== "integer");
}

/**
 * What fulfils both.
 *
 * @param {Schema} one @param {Schema} other @param {string} path
 * @returns {Schema}
 * @throws RangeError when they cannot be said as one
 */
export function merged(one, other, path) {
  /** @type {Schema} */
  const found = { ...one };
  for (const keyword of demands(other)) {
    const [left, right] = [one[keyword], other[keyword]];
    found[keyword] = left === undefined || same(left, right) ? right : both(keyword, left, right, path);
  }
  for (const [inner, outer] of [
    [one, other],
    [other, one],
  ]) {
    if (inner.additionalProperties === undefined || inner.additionalProperties === true) continue;
    const outside = Object.keys(outer.properties ?? {}).find((name) => !Object.hasOwn(inner.properties ?? {}, name));
    if (outside !== undefined) {
      throw refused(
        "additionalProperties",
        path,
        `cannot be joined with the property '${outside}' beside it. Write one object.`,
      );
    }
  }
  return found;
}

/** @param {string} keyword @param {any} left @param {any} right @param {string} path @returns {unknown} */
function both(keyword, left, right, path) {
  switch (keyword) {
    case "required":
      return [...new Set([...left, ...right])];
    case "allOf":
      return [...left, ...right];
    case "enum":
      return left.filter((/** @type {unknown} */ value) =>
        right.some((/** @type {unknown} */ one) => same(value, one)),
      );
    case "type":
      return narrowed([left].flat(), [right].flat());
    case "minimum":
    case "exclusiveMinimum":
    case "minLength":
    case "minItems":
    case "minProperties":
      return Math.max(left, right);
    case "maximum":
    case "exclusiveMaximum":
    case "maxLength":
    case "maxItems":
    case "maxProperties":
      return Math.min(left, right);
    case "properties": {
      const names = [...new Set([...Object.keys(left), ...Object.keys(right)])];
      return Object.fromEntries(names.map((name) => [name, joined(left, right, name)]));
    }
    default:
      if (keyword === "additionalProperties" && (left === true || right === true)) return left === true ? right : left;
      throw refused(
        keyword,
        path,
        "is given twice, and differs: in 'allOf', or beside 'anyOf', 'oneOf' or '$ref'. Write it once.",
      );
  }
}

/** @param {Schema} left @param {Schema} right @param {string} name */
function joined(left, right, name) {
  if (!Object.hasOwn(left, name)) return right[name];
  return Object.hasOwn(right, name) ? { allOf: [left[name], right[name]] } : left[name];
}

/** @param {string[]} left @param {string[]} right @returns {string[]} */
function narrowed(left, right) {
  const found = left.filter((type) => right.includes(type) || (type === "integer" && right.includes("number")));
  if (left.includes("number") && right.includes("integer")) found.push("integer");
  return [...new Set(found)];
}

/**
 * Whether two JSON values are equal, the order of keys aside.
 *
 * @param {unknown} one @param {unknown} other
 * @returns {boolean}
 */
export function same(one, other) {
  if (typeof one !== "object" || typeof other !== "object" || !one || !other) return one === other;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const names = Object.keys(one);
  if (names.length !== Object.keys(other).length) return false;
  const [left, right] = [/** @type {Schema} */ (one), /** @type {Schema} */ (other)];
  return names.every((name) => Object.hasOwn(right, name) && same(left[name], right[name]));
}
