// JSON strings of a length, a pattern, a format, or with a value that none of some names has.

import { character, choice, common, complement, repeat, sequence, text } from "./expression.js";
import { PLAIN, parsePattern } from "./regex.js";

/** @import { Expression, Range } from "./expression.js" */

const HEX = "[0-9a-fA-F]";
const DATE =
  "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
const TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const LABEL = "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?";
// narrower than the RFCs where those allow rarities: the 29th of February, comments in addresses
/** @type {Record<string, string>} */
const FORMATS = {
  date: DATE,
  time: TIME,
  "date-time": `${DATE}T${TIME}`,
  uuid: `${HEX}{8}-${HEX}{4}-${HEX}{4}-${HEX}{4}-${HEX}{12}`,
  ipv4: `${BYTE}(?:\\.${BYTE}){3}`,
  hostname: `${LABEL}(?:\\.${LABEL}){0,3}`,
  email: `[a-z0-9_+-]{1,30}(?:\\.[a-z0-9_+-]{1,30}){0,1}@${LABEL}(?:\\.${LABEL}){0,2}\\.[a-z]{2,10}`,
};

/** Names of the formats that `formatted` knows. */
export const FORMAT_NAMES = Object.keys(FORMATS);

// \u0000 to \uFFFF but for surrogates: half a pair would be no text
const UNICODE = choice(
  sequence(hex("0-9a-ce-f"), repeat(hex("0-9a-f"), 3, 3)),
  sequence(choice("d", "D"), hex("0-7"), repeat(hex("0-9a-f"), 2, 2)),
);
/** @type {Expression} one character of a string, as it is or escaped */
const CHARACTER = choice(
  character(PLAIN),
  sequence("\\", choice(character([...'"\\/bfnrt'].map((sign) => range(sign, sign))), sequence("u", UNICODE))),
);

/** Any string of a length, in characters. @param {number} least @param {number} most @returns {Expression} */
export function strings(least, most) {
  return sequence('"', repeat(CHARACTER, least, most), '"');
}

/** Strings in which a regex is found. @param {string} regex @returns {Expression} */
export function matching(regex) {
  return sequence('"', parsePattern(regex), '"');
}

/** Strings of a format out of FORMAT_NAMES. @param {string} name @returns {Expression} */
export function formatted(name) {
  return matching(`^(?:${FORMATS[name]})$`);
}

/**
 * Strings, written without escapes, that are none of these.
 *
 * @param {Iterable<string>} names
 * @returns {Expression}
 */
export function otherThan(names) {
  return sequence('"', otherEnding([...names].map((name) => [...name])));
}

/** @param {string[][]} names what is left of them, by characters @returns {Expression} up to the closing quote */
function otherEnding(names) {
  /** @type {Map<string, string[][]>} */
  const further = new Map();
  for (const [first, ...rest] of names)
    if (first !== undefined) further.set(first, [...(further.get(first) ?? []), rest]);
  const taken = [...further.keys()].map((first) => range(first, first));
  /** @type {Expression[]} */
  const found = [sequence(character(common(PLAIN, complement(taken))), repeat(character(PLAIN), 0), '"')];
  if (names.every((name) => name.length > 0)) found.push(text('"'));
  for (const [first, rest] of further) {
    const [plain] = common(PLAIN, [range(first, first)]);
    if (plain) found.push(sequence(first, otherEnding(rest)));
  }
  return choice(...found);
}

/** @param {string} classes of lower-case digits, as in "0-9a-c" @returns {Expression} in either case */
function hex(classes) {
  const ranges = [...classes.matchAll(/(.)-(.)/g)].map(([, first, last]) => range(first, last));
  const upper = [...classes.matchAll(/([a-f])-([a-f])/g)].map(([, first, last]) =>
    range(first.toUpperCase(), last.toUpperCase()),
  );
  return character([...ranges, ...upper]);
}

/** @param {string} first @param {string} last @returns {Range} */
function range(first, last) {
  return [/** @type {number} */ (first.codePointAt(0)), /** @type {number} */ (last.codePointAt(0))];
}
