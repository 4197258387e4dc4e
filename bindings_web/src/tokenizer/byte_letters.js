/** The characters that stand for bytes in a byte-level vocabulary. Source: GPT-2's encoder. */

const PLAIN = [[0x21, 0x7e], [0xa1, 0xac], [0xae, 0xff]];

let other = 256;
/** By byte. */
export const LETTERS = Array.from({ length: 256 }, (_, byte) =>
  String.fromCodePoint(PLAIN.some(([first, last]) => first <= byte && byte <= last) ? byte : other++));

/** By letter. */
export const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));
