// OpenAI's response_format, read into what a grammar is compiled from.

/** @import { Source } from "./grammar.js" */

/**
 * @param {unknown} format {type: "text"}, {type: "json_object"}, or {type: "json_schema", json_schema: {schema}};
 *   undefined and null are "text"
 * @returns {Source | null} null where any text may be said
 * @throws RangeError when it has another shape
 */
export function grammarSource(format) {
  if (format === undefined || format === null) return null;
  const { type, json_schema: named } = /** @type {{type?: unknown, json_schema?: unknown}} */ (format);
  if (type === "text") return null;
  if (type === "json_object") return { jsonSchema: { type: "object" } };
  if (type !== "json_schema") {
    throw new RangeError(
      `response_format.type is ${JSON.stringify(type)}; expected "text", "json_object" or "json_schema"`,
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
