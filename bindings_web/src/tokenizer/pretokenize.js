/** Normalized text -> the pieces that the model looks at one by one: the pre-tokenizer of a tokenizer.json. */

import { LETTERS } from "./byte_letters.js";
import { refuse, regularExpression, sequence } from "./parts.js";

/** @typedef {import("./parts.js").Library} Library */
/** @typedef {import("./parts.js").Part} Part */
/** @typedef {{text: string, isFirst: boolean}} Piece isFirst: it is the beginning of the whole text */
/** @typedef {[text: string, isMatch: boolean]} Cut */
/** @typedef {(cuts: Cut[]) => string[]} Behavior */
/** @typedef {(piece: Piece) => string[]} Step */

const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const ENCODER = new TextEncoder();

/** What becomes of the matches of a pattern and of what lies between. @type {Record<string, Behavior>} */
export const BEHAVIORS = {
  Isolated: (cuts) => cuts.map(([text]) => text),
  Removed: (cuts) => cuts.filter(([, isMatch]) => !isMatch).map(([text]) => text),
  Contiguous: (cuts) => joined(cuts, ([, isMatch], [, wasMatch]) => isMatch === wasMatch),
  MergedWithPrevious: (cuts) => joined(cuts, ([, isMatch], [, wasMatch]) => isMatch && !wasMatch),
  MergedWithNext: (cuts) => {
    const back = joined([...cuts].reverse(), ([, isMatch], [, wasMatch]) => isMatch && !wasMatch, true);
    return back.reverse();
  },
};

/** @param {Cut[]} cuts @param {(cut: Cut, before: Cut) => boolean} belongs */
function joined(cuts, belongs, isReversed = false) {
  /** @type {string[]} */
  const pieces = [];
  cuts.forEach((cut, at) => {
    const last = pieces.length - 1;
    if (at === 0 || !belongs(cut, cuts[at - 1])) pieces.push(cut[0]);
    else pieces[last] = isReversed ? cut[0] + pieces[last] : pieces[last] + cut[0];
  });
  return pieces;
}

/** @param {Library} library @param {Part | null} part @param {Record<string, (part: Part) => Step>} more of encoder_parts.js @returns {(text: string, isFirst: boolean) => string[]} */
export function preTokenizer(library, part, more) {
  const steps = sequence(part, "pretokenizers").map((one) => more[one.type]?.(one) ?? step(library, one));
  return (text, isFirst) => {
    /** @type {Piece[]} */
    let pieces = [{ text, isFirst }];
    for (const apply of steps) {
      pieces = pieces.flatMap((piece) => apply(piece).filter(Boolean).map((text, at) => ({ text, isFirst: piece.isFirst && at === 0 })));
    }
    return pieces.map((piece) => piece.text);
  };
}

/** @param {RegExp} pattern with the flag "g" @param {Behavior | undefined} behavior @param {boolean} [isInverted] @returns {Step} */
export function splitter(pattern, behavior, isInverted = false) {
  if (!behavior) return refuse("a way to split that is unknown");
  return ({ text }) => {
    /** @type {Cut[]} */
    const cuts = [];
    let given = 0;
    for (const { 0: match, index } of text.matchAll(pattern)) {
      if (given < index) cuts.push([text.slice(given, index), isInverted]);
      cuts.push([match, !isInverted]);
      given = index + match.length;
    }
    if (given < text.length) cuts.push([text.slice(given), isInverted]);
    return behavior(cuts);
  };
}

/** @param {string} text */
export const byteLetters = (text) => Array.from(ENCODER.encode(text), (byte) => LETTERS[byte]).join("");

/** @param {Library} library @param {Part} part @returns {Step} */
function step(library, part) {
  switch (part.type) {
    case "ByteLevel": {
      const split = part.use_regex === false ? null : splitter(regularExpression(library, { Regex: GPT2 }), BEHAVIORS.Isolated);
      return ({ text, isFirst }) => {
        const led = part.add_prefix_space && !text.startsWith(" ") ? ` ${text}` : text;
        return (split ? split({ text: led, isFirst }) : [led]).map(byteLetters);
      };
    }
    case "Metaspace": return metaspace(part);
    case "Split": return splitter(regularExpression(library, part.pattern), BEHAVIORS[part.behavior], part.invert);
    case "Digits": return splitter(/\p{N}/gu, part.individual_digits ? BEHAVIORS.Isolated : BEHAVIORS.Contiguous);
    case "WhitespaceSplit": return splitter(/\p{White_Space}/gu, BEHAVIORS.Removed);
    case "Whitespace": return splitter(/[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d\p{White_Space}]+/gu, BEHAVIORS.Removed, true);
    case "CharDelimiterSplit": return splitter(regularExpression(library, { String: part.delimiter }), BEHAVIORS.Removed);
    default: return refuse(`the pre-tokenizer '${part.type}'`);
  }
}

/** @param {Part} part @returns {(piece: Piece) => string[]} */
function metaspace({ replacement, prepend_scheme = "always", split = true }) {
  const cut = splitter(new RegExp(replacement.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "gu"), BEHAVIORS.MergedWithNext);
  if (!["always", "first", "never"].includes(prepend_scheme)) return refuse(`the prepend_scheme '${prepend_scheme}'`);
  return ({ text, isFirst }) => {
    const marked = text.replaceAll(" ", replacement);
    const isLed = prepend_scheme === "always" || (prepend_scheme === "first" && isFirst);
    const led = isLed && !marked.startsWith(replacement) ? replacement + marked : marked;
    return split ? cut({ text: led, isFirst }) : [led];
  };
}
