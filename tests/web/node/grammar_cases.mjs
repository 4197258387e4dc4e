// Schemas that grammar.test.mjs runs: those that are followed, what must not come out, and those that are refused.

const closed = { additionalProperties: false };
const text = { type: "string" };

export const SCHEMAS = [
  { type: "object" },
  {},
  { type: "object", properties: { name: text, age: { type: "integer" } }, required: ["name", "age"], ...closed },
  {
    type: "object",
    properties: { a: text, b: { type: "number" }, c: { type: "boolean" }, d: { type: "null" } },
    required: ["b"],
  },
  { type: "array", items: { type: "number" }, minItems: 1, maxItems: 3 },
  { type: "string", minLength: 2, maxLength: 9 },
  { type: "object", properties: { s: { type: "string", maxLength: 300 } }, required: ["s"], ...closed },
  { type: "integer", minimum: 3, maximum: 128 },
  { type: "integer", exclusiveMinimum: -1005, exclusiveMaximum: 17 },
  { type: "integer", minimum: 1000 },
  { type: "number", exclusiveMinimum: 0 },
  { type: "number", minimum: 0.125, maximum: 0.5 },
  { type: "number", minimum: -2.75, exclusiveMaximum: 1.5 },
  { type: "number", minimum: 1e-7, maximum: 3e-7 },
  { type: "number", maximum: -10.5 },
  { enum: ["red", "gr\u00fcn", '"quoted"', 1.5, null, { a: [1] }] },
  { const: { type: "point", at: [0, 1] } },
  { type: ["string", "null"] },
  { anyOf: [{ type: "integer" }, { type: "array", items: text, maxItems: 2 }] },
  { oneOf: [text, { type: "object", properties: { x: { type: "integer" } }, required: ["x"], ...closed }] },
  {
    oneOf: [
      {
        type: "object",
        properties: { kind: { const: "circle" }, r: { type: "number" } },
        required: ["kind", "r"],
        ...closed,
      },
      { type: "object", properties: { kind: { const: "box" }, w: { type: "integer" } }, required: ["kind"], ...closed },
    ],
  },
  {
    $ref: "#/$defs/node",
    $defs: {
      node: {
        type: "object",
        properties: { v: { type: "integer" }, next: { anyOf: [{ $ref: "#/$defs/node" }, { type: "null" }] } },
        required: ["v", "next"],
        ...closed,
      },
    },
  },
  {
    type: "object",
    properties: { children: { type: "array", items: { $ref: "#" } }, "a/b~c": { $ref: "#/definitions/x~1y" } },
    definitions: { "x/y": text },
  },
  {
    allOf: [{ $ref: "#/$defs/base" }],
    properties: { more: { type: "boolean" } },
    required: ["more"],
    $defs: { base: { type: "object", properties: { id: text }, required: ["id"] } },
  },
  {
    $ref: "#/$defs/small",
    description: "beside",
    maximum: 40,
    $defs: { small: { type: "integer", minimum: 7, maximum: 99 } },
  },
  { type: "object", additionalProperties: { type: "integer" } },
  {
    type: "object",
    properties: { ab: text, a: text, "\u00e9": text, 'q"': text },
    additionalProperties: { type: "integer" },
  },
  { type: "object", additionalProperties: { type: "boolean" }, minProperties: 1, maxProperties: 2 },
  { type: "array", prefixItems: [text, { type: "integer" }], items: false, minItems: 1 },
  { type: "array", prefixItems: [text, { type: "integer" }], items: { type: "boolean" }, minItems: 3, maxItems: 5 },
  { type: "array", items: {}, maxItems: 0 },
  { type: "string", pattern: "^[a-z]{2,4}-[0-9]+$" },
  { type: "string", pattern: 'a\\\\"|[^a-z]' },
  { type: "string", pattern: "^\\S+ \\w*$" },
  ...["date", "time", "date-time", "uuid", "ipv4", "hostname", "email"].map((format) => ({ type: "string", format })),
  { properties: { tags: { items: { enum: ["x", "y"] }, minItems: 2 } }, required: ["tags"] },
];

/** A schema, and texts that are none of its values, or no JSON. */
export const INVALID = [
  [
    { type: "object", properties: { a: { type: "integer" } }, required: ["a"], ...closed },
    ["{}", '{"a":1.5}', '{"b":1}', '{"a":1,"a":2}', '{"a":1,}', '{"a":01}', '{"a": 1', " {}", '{"a":1} ', '{"a":"1"}'],
  ],
  [{ type: "number", exclusiveMinimum: 0 }, ["0", "0.0", "-1", "-0", "0.", "00.1"]],
  [{ type: "number", maximum: 0.5 }, ["0.51", "0.500001", "1", "10"]],
  [{ type: "integer", minimum: 3, maximum: 128 }, ["2", "129", "1000", "-3", "3.0", "03"]],
  [{ type: "string", maxLength: 2 }, ['"abc"', '"\n"', '"\t"', '"\\ud800"', '"\\x"', '"\\u12"', '"a']],
  [
    { type: "object", properties: { ab: {} }, additionalProperties: { type: "string" } },
    ['{"a": 1}', '{"abc": 1}', '{"\\u0061b": "x"}', '{"": null}'],
  ],
  [
    { type: "array", items: { type: "null" }, minItems: 1, maxItems: 2 },
    ["[]", "[null,null,null]", "[null,]", "[,null]"],
  ],
  [{ type: "string", pattern: "^a$" }, ['"b"', '"aa"', '""']],
  [{ type: "string", format: "date" }, ['"2026-02-30"', '"2026-13-01"', '"2026-1-1"']],
  [{ type: "object" }, ["[]", "null", '{"a":\n\n1}', '{"a" :1}', '{"a":NaN}']],
];

/** A schema, and what the error must name. */
export const REFUSED = [
  [{ type: "object", properties: { a: { type: "array", uniqueItems: true } } }, "uniqueItems", "#/properties/a"],
  [{ type: "integer", multipleOf: 3 }, "multipleOf", "#"],
  [{ not: { type: "string" } }, "not", "#"],
  [{ if: {}, then: {} }, "if"],
  [{ anyOf: [{ type: "string" }, { patternProperties: {} }] }, "patternProperties", "#/anyOf/1"],
  [{ type: "array", items: { contains: {} } }, "contains", "#/items"],
  [{ $defs: { x: { dependentRequired: {} } }, $ref: "#/$defs/x" }, "dependentRequired", "#/$defs/x"],
  [{ type: "string", format: "idn-email" }, "format", "idn-email"],
  [{ type: "string", pattern: "(?=a)" }, "pattern", "look"],
  [{ type: "string", pattern: "a", minLength: 3 }, "pattern", "length"],
  [{ oneOf: [{ type: "integer" }, { type: "number" }] }, "oneOf"],
  [{ oneOf: [{ type: "object" }, { type: "object", properties: { a: {} } }] }, "oneOf"],
  [{ allOf: [{ pattern: "a" }, { pattern: "b" }] }, "pattern"],
  [
    { allOf: [{ properties: { a: {} }, additionalProperties: false }, { properties: { b: {} } }] },
    "additionalProperties",
    "'b'",
  ],
  [{ $ref: "https://example.org/x" }, "$ref", "example.org"],
  [{ $ref: "#/$defs/none" }, "$ref", "leads nowhere"],
  [{ type: "text" }, "type", "text"],
  [{ type: "object", properties: {}, required: ["z"] }, "required", "'z'"],
  [{ type: "object", properties: { n: { $ref: "#" } }, required: ["n"] }, "no finite text"],
  [{ type: "integer", minimum: 5, maximum: 4 }, "no finite text"],
  [false, "no finite text"],
  [{ $ref: "#" }, "no finite text"],
  [{ type: "string", minLength: -1 }, "minLength"],
  [{ type: "object", minProperties: 3 }, "minProperties"],
  [{ enum: ["abc"], maxLength: 2 }, "maxLength"],
  [{ colour: "red" }, "colour"],
  [{ type: "object", properties: { a: "string" } }, "#/properties/a"],
];
