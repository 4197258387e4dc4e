// JSON schemas as expressions over the bytes of JSON texts.
//
// Whatever is made fulfils the schema; not all that fulfils it is made. Properties come in the order in which the
// schema lists them, then those it does not list, if "additionalProperties" is given. Between tokens stand at most one
// space, or one line break with an indentation, so that white space comes to an end.

import { NOTHING, character, choice, optional, repeat, sequence, text } from "./expression.js";
import { DEEPEST, demands, known, refused, typesOf } from "./keywords.js";
import { integers, numbers } from "./numbers.js";
import { areApart } from "./one_of.js";
import { References } from "./references.js";
import { bounds, count, list, literals, stringOf } from "./scalars.js";
import { otherThan } from "./strings.js";

/** @import { Expression, Rule } from "./expression.js" */
/** @import { Schema } from "./keywords.js" */

const SPACE = choice(
  NOTHING,
  " ",
  sequence(
    "\n",
    repeat(
      character([
        [9, 9],
        [32, 32],
      ]),
      0,
      32,
    ),
  ),
);
const COMMA = sequence(",", SPACE);
const COLON = sequence(":", optional(" "));

/**
 * The JSON texts that fulfil a schema.
 *
 * @param {unknown} schema
 * @returns {Expression}
 * @throws RangeError for a keyword that cannot be followed; it names keyword and path
 */
export function schemaExpression(schema) {
  return new Schemas(schema).value(schema, "#", 0);
}

class Schemas {
  #references;
  /** @type {Map<string, Rule>} */
  #rules = new Map();
  /** @type {Rule | null} */
  #anything = null;

  /** @param {unknown} root */
  constructor(root) {
    this.#references = new References(root);
  }

  /** @param {unknown} schema @param {string} path @param {number} depth @returns {Expression} */
  value(schema, path, depth) {
    if (depth > DEEPEST) {
      throw new RangeError(
        `JSON schema: ${path} lies ${DEEPEST} schemas deep. Does an 'allOf' or '$ref' with keywords beside it contain itself?`,
      );
    }
    const whole = known(schema, path);
    if (!whole) return choice();
    const asked = demands(whole);
    if (!asked.length) return this.#any();
    if (asked.length === 1 && asked[0] === "$ref") return this.#rule(whole.$ref, path);
    if (whole.$ref !== undefined) {
      const { $ref, ...rest } = whole;
      return this.value(this.#references.joined([this.#references.target($ref, path), rest], path), path, depth + 1);
    }
    if (whole.allOf !== undefined) {
      const { allOf, ...rest } = whole;
      return this.value(this.#references.joined([...list(allOf, "allOf", path), rest], path), path, depth + 1);
    }
    for (const keyword of ["anyOf", "oneOf"])
      if (whole[keyword] !== undefined) return this.#oneOf(keyword, whole, path, depth);
    return this.#plain(whole, path, depth);
  }

  /** @param {string} keyword @param {Schema} schema @param {string} path @param {number} depth */
  #oneOf(keyword, schema, path, depth) {
    const { [keyword]: branches, ...rest } = schema;
    const places = list(branches, keyword, path).map((branch, place) => ({
      branch,
      at: `${path}/${keyword}/${place}`,
    }));
    if (keyword === "oneOf") {
      const resolved = places.map(({ branch, at }) => this.#references.resolved(branch, at));
      for (const [place, one] of resolved.entries()) {
        for (const other of resolved.slice(0, place)) {
          if (!areApart(one, other, path)) {
            throw refused(
              "oneOf",
              path,
              "has branches that one value may both fulfil. Use 'anyOf', or give each a 'type', or a required property whose 'const' differs.",
            );
          }
        }
      }
    }
    if (!demands(rest).length) return choice(...places.map(({ branch, at }) => this.value(branch, at, depth + 1)));
    return choice(
      ...places.map(({ branch, at }) => this.value(this.#references.joined([branch, rest], at), at, depth + 1)),
    );
  }

  /** @param {Schema} schema without what joins schemas @param {string} path @param {number} depth @returns {Expression} */
  #plain(schema, path, depth) {
    const types = typesOf(schema, path);
    if (schema.enum !== undefined || schema.const !== undefined) return literals(schema, path);
    return choice(...types.map((type) => {
      switch (type) {
        case "null":
          return text("null");
        case "boolean":
          return choice("true", "false");
        case "integer":
          return integers(bounds(schema, path));
        case "number":
          return numbers(bounds(schema, path));
        case "string":
          return stringOf(schema, path);
        case "array":
          return this.#array(schema, path, depth);
        default:
          return this.#object(schema, path, depth);
      }
    })); // prettier-ignore
  }

  /** @param {Schema} schema @param {string} path @param {number} depth @returns {Expression} */
  #array({ items = true, prefixItems = [], ...schema }, path, depth) {
    const least = count(schema, "minItems", path, 0);
    const most = count(schema, "maxItems", path, Infinity);
    const first = list(prefixItems, "prefixItems", path, 0).slice(0, most);
    if (Array.isArray(items))
      throw refused("items", path, "is a list; expected a schema. Write 'prefixItems' for the first ones.");
    const left = most - first.length;
    const each = left > 0 ? this.value(items, `${path}/items`, depth + 1) : choice();
    const more = sequence(COMMA, each);
    let rest = repeat(more, Math.max(least - first.length, 0), Math.max(left, 0));
    for (let place = first.length - 1; place >= 0; place--) {
      const item = sequence(
        place ? COMMA : NOTHING,
        this.value(first[place], `${path}/prefixItems/${place}`, depth + 1),
        rest,
      );
      rest = place >= least ? optional(item) : item;
    }
    if (!first.length) {
      const some = sequence(each, repeat(more, Math.max(least - 1, 0), Math.max(left - 1, 0)));
      rest = left === 0 ? (least ? choice() : NOTHING) : least ? some : optional(some);
    }
    if (least > most) return choice();
    return sequence("[", SPACE, rest, SPACE, "]");
  }

  /** @param {Schema} schema @param {string} path @param {number} depth @returns {Expression} */
  #object({ properties = {}, required = [], additionalProperties, ...schema }, path, depth) {
    const names = Object.keys(properties);
    const needed = new Set(list(required, "required", path, 0));
    const most = count(schema, "maxProperties", path, Infinity);
    const least = count(schema, "minProperties", path, 0);
    // a schema that lists properties means these, unless it says more
    const others = additionalProperties ?? names.length === 0;
    const missing = [...needed].filter((name) => !Object.hasOwn(properties, name));
    if (missing.length)
      throw refused("required", path, `names '${missing[0]}', which is not in 'properties'. Add it there.`);
    if (least > Math.max(needed.size, 1))
      throw refused("minProperties", path, "above 1 and the required ones is not supported. Name them in 'required'.");
    if (names.length && most < names.length + (others === false ? 0 : Infinity)) {
      throw refused(
        "maxProperties",
        path,
        "is supported for objects that list no properties only. List fewer, or leave it out.",
      );
    }
    const other =
      others === false
        ? choice()
        : sequence(otherThan(names), COLON, this.value(others, `${path}/additionalProperties`, depth + 1));
    let first = most < 1 ? NOTHING : optional(sequence(other, repeat(sequence(COMMA, other), 0, most - 1)));
    let next = repeat(sequence(COMMA, other), 0);
    if (least > needed.size) {
      if (names.length)
        throw refused("minProperties", path, "beside 'properties' is not supported. Name one in 'required'.");
      first = sequence(other, repeat(sequence(COMMA, other), 0, most - 1));
    }
    for (const name of names.reverse()) {
      const value = this.value(properties[name], `${path}/properties/${name}`, depth + 1);
      const pair = sequence(JSON.stringify(name), COLON, value);
      const [begun, continued] = [sequence(pair, next), sequence(COMMA, pair, next)];
      first = needed.has(name) ? begun : choice(begun, first);
      next = needed.has(name) ? continued : choice(continued, next);
    }
    return sequence("{", SPACE, first, SPACE, "}");
  }

  /** @returns {Expression} any JSON value */
  #any() {
    if (!this.#anything) {
      this.#anything = { kind: "rule", name: "any JSON value", of: null };
      this.#anything.of = this.#plain({}, "#", 0);
    }
    return this.#anything;
  }

  /** @param {unknown} reference @param {string} path @returns {Expression} */
  #rule(reference, path) {
    const target = this.#references.target(reference, path);
    const name = String(reference);
    let rule = this.#rules.get(name);
    if (!rule) {
      rule = { kind: "rule", name, of: null };
      this.#rules.set(name, rule);
      rule.of = this.value(target, name, 0);
    }
    return rule;
  }
}
