// Schemas that are named by a place, and several that are demanded at once, as one schema.

import { DEEPEST, known, merged, refused } from "./keywords.js";

/** @import { Schema } from "./keywords.js" */

/** The places of one schema. */
export class References {
  #root;

  /** @param {unknown} root */
  constructor(root) {
    this.#root = root;
  }

  /** @param {unknown[]} schemas @param {string} path @returns {Schema | false} one that says what all say */
  joined(schemas, path) {
    /** @type {Schema} */
    let found = {};
    for (const schema of schemas) {
      const next = this.resolved(schema, path);
      if (!next) return false;
      if (["anyOf", "oneOf"].some((keyword) => found[keyword] && next[keyword])) {
        throw refused("allOf", path, "joins more than one 'anyOf' or 'oneOf'. Write out the combinations.");
      }
      found = merged(found, next, path);
    }
    return found;
  }

  /** A schema itself, not a reference to it. @param {unknown} schema @param {string} path @returns {Schema | null} */
  resolved(schema, path) {
    let found = known(schema, path);
    for (let hops = 0; found?.$ref !== undefined; hops++) {
      if (hops > DEEPEST) throw refused("$ref", path, "leads back to itself.");
      const { $ref, ...rest } = found;
      const target = known(this.target($ref, path), $ref);
      found = target && merged(target, rest, path);
    }
    return found;
  }

  /** @param {unknown} reference @param {string} path @returns {unknown} */
  target(reference, path) {
    if (typeof reference !== "string" || !/^#(\/|$)/.test(reference)) {
      throw refused(
        "$ref",
        path,
        `is ${JSON.stringify(reference)}; expected a place in this schema, such as "#/$defs/name"`,
      );
    }
    let found = /** @type {any} */ (this.#root);
    for (const part of reference.split("/").slice(1)) {
      const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
      if (!found || typeof found !== "object" || !Object.hasOwn(found, name))
        throw refused("$ref", path, `leads nowhere: ${reference}`);
      found = found[name];
    }
    return found;
  }
}
