/** What the parts of a tokenizer.json are read with: patterns, and what to say of a part that is not known here. */

import { PackageError } from "../errors.js";

/** @typedef {typeof import("@huggingface/tokenizers")} Library */
/** @typedef {Record<string, any>} Part a part of tokenizer.json: its fields depend on its "type" */

// What the library passes over, or writes so that it matches something else: \G, flags for the rest, atomic groups, and
// a possessive quantifier before a condition, where giving back a character changes what is matched.
const NOT_SAME = /\\G|\(\?[imsx-]+\)|\(\?>|[+*?]\+(?:\$|\(\?[!=<])/;

/** @param {string} what @returns {never} */
export function refuse(what) {
  throw new PackageError(
    `tokenizer.json has ${what}, which the tokenizer of a browser does not do as the model needs it. Use a model with ` +
      "another tokenizer, or run this one with Python outside of a browser.",
  );
}

/**
 * The pattern of a part, as a regular expression with the flags "gu".
 *
 * @param {Library} library it knows how Oniguruma's patterns are written in JavaScript
 * @param {{String?: string, Regex?: string}} pattern
 */
export function regularExpression(library, pattern) {
  if (pattern?.String !== undefined) return new RegExp(pattern.String.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "gu");
  if (typeof pattern?.Regex !== "string") return refuse(`the pattern ${JSON.stringify(pattern)}`);
  if (NOT_SAME.test(pattern.Regex)) return refuse(`the pattern ${JSON.stringify(pattern.Regex)}`);
  try {
    const folded = { Regex: pattern.Regex.replace(/\(\?i:[^()]*\)/g, withFoldedClasses) };
    const made = new library.SplitPreTokenizer({ type: "Split", pattern: folded, behavior: "Isolated", invert: false }).pattern;
    if (!made) return refuse(`the pattern ${JSON.stringify(pattern.Regex)}`);
    // (?i:s) and (?i:k) match the long s and the kelvin sign too, which the library leaves out
    return new RegExp(made.source.replaceAll("[sS]", "[sS\u017f]").replaceAll("[kK]", "[kK\u212a]"), "gu");
  } catch (error) {
    if (error instanceof PackageError) throw error;
    return refuse(`the pattern ${JSON.stringify(pattern.Regex)}`);
  }
}

/** As above, for the classes of a group without case. @param {string} group */
function withFoldedClasses(group) {
  return group.replace(/\[(?!\^)([^[\]\\]*)\]/g, (_, body) => {
    const has = new RegExp(`[${body}]`, "i");
    return `[${body}${has.test("s") ? "\u017f" : ""}${has.test("k") ? "\u212a" : ""}]`;
  });
}

/** The parts in a "Sequence", a part alone, or none. @param {Part | null | undefined} part @param {string} name the field of a sequence @returns {Part[]} */
export function sequence(part, name) {
  if (part === null || part === undefined) return [];
  return part.type === "Sequence" ? part[name].flatMap((/** @type {Part} */ inner) => sequence(inner, name)) : [part];
}
