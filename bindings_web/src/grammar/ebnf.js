// Grammars as text: rules `name ::= ...` as GBNF and XGrammar write them, which begin at `root`.

import { NOTHING, character, choice, complement, repeat, text } from "./expression.js";

/** @import { Expression, Range, Rule } from "./expression.js" */

const TOKEN =
  /\s*(?:#[^\n]*\s*)*(?:("(?:[^"\\\n]|\\.)*")|(\[\^?(?:[^\]\\\n]|\\.)*\])|(\{\d+(?:,\d*)?\})|([A-Za-z_][\w-]*)(\s*::=)?|(::=|[()|*+?])|$)/y;
/** @type {Record<string, string>} */
const CONTROLS = { n: "\n", r: "\r", t: "\t", b: "\b", f: "\f", v: "\v", 0: "\0" };
const ESCAPE = /\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([^]))/gu;

/** @typedef {{kind: "literal" | "class" | "bounds" | "name" | "head" | "sign" | "end", text: string, line: number}} Token */

/**
 * "texts" in quotes, [classes] of characters, groups in (), |, *, +, ?, {m,n}, # comments; `root` is the whole reply.
 *
 * @param {string} source
 * @returns {Expression}
 * @throws RangeError that names the line
 */
export function parseEbnf(source) {
  /** @type {Map<string, Rule>} */
  const rules = new Map();
  /** @param {string} name */
  const rule = (name) => {
    const known = rules.get(name) ?? { kind: /** @type {const} */ ("rule"), name, of: null };
    rules.set(name, known);
    return known;
  };
  const tokens = tokensOf(source);
  let at = 0;
  /** @param {string} sign @returns {boolean} */
  const took = (sign) => tokens[at].text === sign && tokens[at].kind === "sign" && at++ >= 0;
  /** @param {string} problem */
  const error = (problem) =>
    new RangeError(`EBNF, line ${tokens[at].line}: ${problem}; found '${tokens[at].text || "the end"}'`);

  /** @returns {Expression} */
  const alternatives = () => {
    const found = [items()];
    while (took("|")) found.push(items());
    return found.length === 1 ? found[0] : choice(...found);
  };
  /** @returns {Expression} */
  const items = () => {
    /** @type {Expression[]} */
    const found = [];
    for (let item = quantified(); item; item = quantified()) found.push(item);
    return found.length ? { kind: "sequence", items: found } : NOTHING;
  };
  /** @returns {Expression | null} */
  const quantified = () => {
    let item = atom();
    while (item) {
      if (took("*")) item = repeat(item, 0);
      else if (took("+")) item = repeat(item, 1);
      else if (took("?")) item = repeat(item, 0, 1);
      else if (tokens[at].kind === "bounds") {
        const [least, most = least] = tokens[at++].text.slice(1, -1).split(",");
        if (most !== "" && Number(most) < Number(least)) throw error(`{${least},${most}} goes from less to more`);
        item = repeat(item, Number(least), most === "" ? Infinity : Number(most));
      } else break;
    }
    return item;
  };
  /** @returns {Expression | null} */
  const atom = () => {
    const { kind, text: read } = tokens[at];
    if (kind === "literal") return text(unescaped(tokens[at++].text.slice(1, -1)));
    if (kind === "class") return character(ranges(tokens[at++].text));
    if (kind === "name") return rule(tokens[at++].text);
    if (kind !== "sign" || read !== "(") return null;
    at++;
    const inner = alternatives();
    if (!took(")")) throw error("expected ')'");
    return inner;
  };

  while (tokens[at].kind !== "end") {
    if (tokens[at].kind !== "head") throw error("expected a rule, 'name ::= ...'");
    const head = rule(tokens[at].text);
    if (head.of) throw error(`the rule '${head.name}' is defined twice; expected once`);
    at++;
    head.of = alternatives();
  }
  const root = rules.get("root");
  if (!root?.of) throw new RangeError("the EBNF has no rule 'root', which is the whole reply. Write 'root ::= ...'.");
  return root;
}

/** @param {string} source @returns {Token[]} */
function tokensOf(source) {
  /** @type {Token[]} */
  const found = [];
  TOKEN.lastIndex = 0;
  for (;;) {
    const start = TOKEN.lastIndex;
    const match = TOKEN.exec(source);
    const line = source.slice(0, match ? TOKEN.lastIndex : start).split("\n").length;
    if (!match) throw new RangeError(`EBNF, line ${line}: cannot read '${source.slice(start).trim().slice(0, 20)}'`);
    const [, literal, set, bounds, name, assigned, sign] = match;
    if (literal) found.push({ kind: "literal", text: literal, line });
    else if (set) found.push({ kind: "class", text: set, line });
    else if (bounds) found.push({ kind: "bounds", text: bounds, line });
    else if (name) found.push({ kind: assigned ? "head" : "name", text: name, line });
    else if (sign) found.push({ kind: "sign", text: sign, line });
    else return [...found, { kind: "end", text: "", line }];
  }
}

/** @param {string} written @returns {string} */
function unescaped(written) {
  return written.replace(ESCAPE, (_, x, u, long, other) => {
    const digits = x ?? u ?? long;
    return digits ? String.fromCodePoint(Number.parseInt(digits, 16)) : (CONTROLS[other] ?? other);
  });
}

/** @param {string} written with its brackets @returns {Range[]} */
function ranges(written) {
  const isNegated = written[1] === "^";
  const members =
    written.slice(isNegated ? 2 : 1, -1).match(/\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[^])|[^]/gu) ?? [];
  const codes = members.map((member) => /** @type {number} */ (unescaped(member).codePointAt(0)));
  /** @type {Range[]} */
  const found = [];
  for (let at = 0; at < codes.length; at++) {
    const isRange = members[at + 1] === "-" && at + 2 < codes.length;
    const last = isRange ? codes[at + 2] : codes[at];
    if (last < codes[at]) throw new RangeError(`EBNF: '${written}' has a range that goes backwards`);
    found.push([codes[at], last]);
    if (isRange) at += 2;
  }
  return isNegated ? complement(found) : found;
}
