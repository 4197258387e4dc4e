/** Chat templates as the syntax tree of @huggingface/jinja, with what its parser lacks put into words that it knows.
 *
 * Read: version 0.5.11. Only its tokenize() and parse() are used: its interpreter lets many a thing pass that Python
 * would refuse or write otherwise ("strip('x')" ignores the 'x', a list prints as JSON, an undefined value has fields),
 * and a wrong prompt is worse than none.
 */

/** @typedef {typeof import("@huggingface/jinja")} Library */
/** @typedef {{type: string, value: string}} Token */
/** @typedef {any} Node a node of the tree: its fields depend on its `type`, src/ast.ts of the library lists them */

/** Names that no template can write, since they hold a space; parse() and the evaluator agree on them. */
export const WITH = "with block";
export const GENERATION = "generation block";
export const TEST = "is ";

const GENERATION_TAG = /\{%([-+]?)(\s*)(end)?generation(\s*)([-+]?)%\}/g;
const OPENED = "OpenParen OpenSquareBracket OpenCurlyBracket";
const CLOSED = "CloseParen CloseSquareBracket CloseCurlyBracket";

/**
 * The tree of a template. Raises what the library raises when the text is not a template, or uses what it lacks.
 *
 * @param {Library} library @param {string} source @returns {Node}
 */
export function parseTemplate(library, source) {
  // the library drops {% generation %}, whose body is a scope of its own
  const marked = source.replace(/\r\n?/g, "\n").replace(GENERATION_TAG, (_, open, before, end, after, close) =>
    `{%${open}${before}${end ? "endcall" : "call generation()"}${after}${close}%}`);
  // nor does it know the mark that keeps white space: an empty expression at its place keeps it too
  const kept = marked.replaceAll("{%+", "{{''}}{%").replaceAll("+%}", "%}{{''}}");
  const tokens = /** @type {Token[]} */ (library.tokenize(kept, { lstrip_blocks: true, trim_blocks: true }));
  return library.parse(/** @type {any} */ (withBlocks(withTests(tokens)))); // the library's class Token has these very fields
}

/** @param {Token | undefined} token @param {string} type @param {string} [value] */
const is = (token, type, value) => token?.type === type && (value === undefined || token.value === value);

/** @param {string} type @param {string} value @returns {Token} */
const token = (type, value) => ({ type, value });

/** `x is divisibleby(3)`, `x is in [1]` -> `x | "is divisibleby"(3)`: its tests take no arguments. @param {Token[]} tokens */
function withTests(tokens) {
  /** @type {Token[]} */
  const made = [];
  for (let at = 0; at < tokens.length; at++) {
    const isNegated = is(tokens[at + 1], "Identifier", "not");
    const name = tokens[at + (isNegated ? 2 : 1)];
    const start = at + (isNegated ? 3 : 2);
    const isTest = is(tokens[at], "Identifier", "is") && is(name, "Identifier") && !is(tokens[at - 1], "Dot") && !inTag(tokens, at);
    const stop = isTest ? argumentEnd(tokens, start) : start;
    if (!isTest || stop === start) {
      made.push(tokens[at]);
      continue;
    }
    const given = withTests(tokens.slice(start, stop));
    const isCall = is(given[0], "OpenParen") && stop === groupEnd(tokens, start);
    const [open, close] = isCall ? [[], []] : [[token("OpenParen", "(")], [token("CloseParen", ")")]];
    made.push(token("Pipe", "|"), token("Identifier", `${TEST}${isNegated ? "not " : ""}${name.value}`), ...open, ...given, ...close);
    at = stop - 1;
  }
  return made;
}

/** Whether a word stands first in its block, where it names the block. @param {Token[]} tokens @param {number} at */
const inTag = (tokens, at) => is(tokens[at - 1], "OpenStatement");

/** Where the argument of a test ends; its start when there is none. @param {Token[]} tokens @param {number} start */
function argumentEnd(tokens, start) {
  const first = tokens[start];
  if (!first || (is(first, "Identifier") && /^(else|or|and|if|is|in|not)$/.test(first.value))) return start;
  if (!/^(Identifier|StringLiteral|NumericLiteral|OpenParen|OpenSquareBracket|OpenCurlyBracket)$/.test(first.type)) return start;
  let at = groupEnd(tokens, start);
  if (is(first, "OpenParen")) return at;
  for (;;) {
    if (is(tokens[at], "Dot")) at += 2;
    else if (is(tokens[at], "OpenParen") || is(tokens[at], "OpenSquareBracket")) at = groupEnd(tokens, at);
    else return at;
  }
}

/** Where a bracket's content ends, or a single token. @param {Token[]} tokens @param {number} start */
function groupEnd(tokens, start) {
  let depth = 0;
  for (let at = start; at < tokens.length; at++) {
    if (OPENED.includes(tokens[at].type)) depth++;
    if (CLOSED.includes(tokens[at].type)) depth--;
    if (depth === 0) return at + 1;
  }
  return tokens.length;
}

/** `{% with a = 1 %}...{% endwith %}` -> `{% call(a = 1) WITH() %}...{% endcall %}`, and likewise GENERATION. @param {Token[]} tokens */
function withBlocks(tokens) {
  /** @type {Token[]} */
  const made = [];
  let isOpen = false; // inside of the tag {% with ... %}
  tokens.forEach((one, at) => {
    const isFirst = inTag(tokens, at);
    if (isFirst && is(one, "Identifier", "with")) {
      isOpen = true;
      made.push(token("Identifier", "call"), token("OpenParen", "("));
    } else if (isOpen && is(one, "CloseStatement")) {
      isOpen = false;
      made.push(token("CloseParen", ")"), token("Identifier", WITH), token("OpenParen", "("), token("CloseParen", ")"), one);
    } else if (isFirst && is(one, "Identifier", "endwith")) {
      made.push(token("Identifier", "endcall"));
    } else if (is(one, "Identifier", "generation") && is(tokens[at - 1], "Identifier", "call") && inTag(tokens, at - 1)) {
      made.push(token("Identifier", GENERATION));
    } else {
      made.push(one);
    }
  });
  return made;
}
