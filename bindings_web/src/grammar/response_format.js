// response_format, read into what a grammar is compiled from: the twin of embedllm/sampling/structured/response_format.py.

/** @import { Source } from "./grammar.js" */

const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"]; // of JSON
const OF_ANY_TYPE = ["$ref", "allOf", "anyOf", "const", "enum", "oneOf", "properties"]; // of a schema that names no type

/**
 * @param {unknown} format {type: "text"}, {type: "json_object", schema?}, {type: "json_schema", json_schema: {schema}},
 *   or a JSON schema as it is; undefined and null are "text"
 * @returns {Source | null} null where any text may be said
 * @throws RangeError when it has another shape
 */
export function grammarSource(format) {
  if (format === undefined || format === null) return null;
  const fields = /** @type {{type?: unknown, schema?: unknown, json_schema?: unknown}} */ (Object(format));
  const { type, schema: own = { type: "object" }, json_schema: named } = fields;
  if (type === "text") return null;
  if (type === "json_object") return { jsonSchema: own };
  const isOfType = Array.isArray(type) || TYPES.includes(String(type));
  if (isOfType || (type === undefined && OF_ANY_TYPE.some((key) => key in fields))) return { jsonSchema: format };
  if (type !== "json_schema") {
    throw new RangeError(
      `response_format.type is ${JSON.stringify(type)}; expected "text", "json_object", "json_schema" or a type of JSON`,
    );
  }
  const schema = named && typeof named === "object" && "schema" in named ? named.schema : undefined;
  if (schema === undefined) {
    throw new RangeError(
      'response_format has no json_schema.schema; expected {"type": "json_schema", "json_schema": {"schema": ...}}',
    );
  }
  return { jsonSchema: schema };
}
