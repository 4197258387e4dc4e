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
export const GROUP = "in parentheses";

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
  const tokens = /** @type {Token[]} */ (library.tokenize(`${trimmed(marked.replace(/\n$/, ""))}\n`)); // it takes the last line's end off
  return library.parse(/** @type {any} */ (withBlocks(withTests(withGroups(tokens))))); // the library's class Token has these very fields
}

/**
 * A template as trim_blocks and lstrip_blocks leave it, without the marks that keep white space ("{%+").
 *
 * The library's own take "{-" and "-}" in a text for blocks, too.
 * @param {string} source
 */
function trimmed(source) {
  let made = "";
  let at = 0;
  for (;;) {
    const start = source.slice(at).search(/\{[{%#]/) + at;
    if (start < at) return made + source.slice(at);
    const isExpression = source[start + 1] === "{";
    const isKept = source[start + 2] === "+";
    const text = source.slice(at, start);
    const isLine = at === 0 || source[at - 1] === "\n";
    made += isExpression || isKept ? text : text.replace(isLine ? /(^|\n)[^\S\n]+$/ : /(\n)[^\S\n]+$/, "$1");
    const stop = tagEnd(source, start);
    const tag = source.slice(start, stop);
    const keepsEnd = /\+[%#]\}$/.test(tag);
    made += tag.slice(0, 2) + tag.slice(isKept ? 3 : 2, keepsEnd ? -3 : tag.length) + (keepsEnd ? tag.slice(-2) : "");
    at = stop + (!isExpression && !keepsEnd && source[stop] === "\n" ? 1 : 0);
  }
}

/** Where a tag ends that begins here; texts in quotes may hold what looks like its end. @param {string} source @param {number} start */
function tagEnd(source, start) {
  const close = { "{": "}}", "%": "%}", "#": "#}" }[source[start + 1]] ?? "";
  let depth = 0;
  for (let at = start + 2; at < source.length; at++) {
    const letter = source[at];
    if (depth <= 0 && source.startsWith(close, at)) return at + 2;
    if (close === "#}") continue;
    if (letter === "{") depth++;
    else if (letter === "}") depth--;
    else if (letter === "'" || letter === '"') {
      for (at++; at < source.length && source[at] !== letter; at++) if (source[at] === "\\") at++;
    }
  }
  return source.length;
}

/** @param {Token | undefined} token @param {string} type @param {string} [value] */
const is = (token, type, value) => token?.type === type && (value === undefined || token.value === value);

/** @param {string} type @param {string} value @returns {Token} */
const token = (type, value) => ({ type, value });

/** What may stand in front of parentheses that are no call's. */
const BEFORE_GROUP = /^(and|or|not|if|elif|else|in|is|set)$/;

/** `(a == b) != c` -> `(a == b) | GROUP != c`: the library's tree has no parentheses. @param {Token[]} tokens */
function withGroups(tokens) {
  /** @type {Set<number>} */
  const ends = new Set();
  tokens.forEach((one, at) => {
    const before = tokens[at - 1];
    const isCall = /^(CloseParen|CloseSquareBracket|StringLiteral)$/.test(before?.type ?? "") || (is(before, "Identifier") && !BEFORE_GROUP.test(before.value));
    if (!is(one, "OpenParen") || isCall) return;
    const end = groupEnd(tokens, at);
    const next = tokens[end];
    const isOperand = next?.type === "ComparisonBinaryOperator" || is(next, "AdditiveBinaryOperator", "~") || (is(next, "Identifier") && /^(in|not)$/.test(next.value));
    if (isOperand) ends.add(end - 1);
  });
  return tokens.flatMap((one, at) => (ends.has(at) ? [one, token("Pipe", "|"), token("Identifier", GROUP)] : [one]));
}

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
