/** Normalizers and pre-tokenizers of BERT's, T5's and XLM-RoBERTa's kind.
 *
 * The tables of the package `tokenizers` 0.23 are those of Unicode 8 and 9: the classes here leave out what came later
 * and a browser knows (found by a comparison of every character, which tests/web/test_text.py repeats).
 */

import { BEHAVIORS, splitter } from "./pretokenize.js";
import { refuse } from "./parts.js";

/** @typedef {import("./parts.js").Part} Part */
/** @typedef {(text: string) => string} Normalize */

const NONSPACING = /(?![\u07fd\u0897-\u08e1\u09fe\u0afa-\u0aff\u0b55\u0c04-\u0c3c\u0d00\u0d3b-\u0d3c\u0d81\u0eba\u0ece\u180f-\u1886\u1abf-\u1aeb\u1df6-\u1dfb\ua82c\ua8c5\ua8ff\ua9bd\u{10d24}-\u{10f85}\u{11070}-\u{11074}\u{110c2}\u{111c9}\u{111cf}\u{1123e}-\u{11241}\u{1133b}\u{113bb}-\u{1145e}\u{1182f}-\u{1612f}\u{16f4f}\u{16fe4}\u{1cf00}-\u{1cf46}\u{1e000}-\u{1e6f5}\u{1e944}-\u{1e94a}])\p{Mn}|[\u1734\u{1171e}]/gu;
const MARKS = /(?![\u07fd\u0897-\u08d3\u09fe\u0afa-\u0aff\u0b55\u0c04-\u0c3c\u0cf3-\u0d00\u0d3b-\u0d3c\u0d81\u0eba\u0ece\u1715\u180f\u1abf-\u1aeb\u1cf7\u1df6-\u1dfa\ua82c\ua8ff\u{10d24}-\u{10f85}\u{11070}-\u{11074}\u{110c2}\u{11145}-\u{11146}\u{111c9}\u{111ce}-\u{111cf}\u{11241}\u{1133b}\u{113b8}-\u{113e2}\u{1145e}\u{1182c}-\u{11b67}\u{11d31}-\u{1612f}\u{16f4f}\u{16f7f}-\u{16f87}\u{16fe4}-\u{16ff1}\u{1cf00}-\u{1cf46}\u{1e08f}-\u{1e6f5}])\p{M}|[\u1cf2\u1cf3]/gu;
const PUNCTUATION = /(?![\u061d\u09fd-\u0a76\u0c77-\u0c84\u1b4e-\u1b4f\u1b7d-\u1b7f\u2e43-\u2e5d\u{10d6e}-\u{10f89}\u{113d4}-\u{1145d}\u{11660}-\u{116b9}\u{1183b}-\u{11fff}\u{12ff1}-\u{12ff2}\u{16d6d}-\u{16fe2}\u{1e5ff}-\u{1e95f}])[\p{P}!-/:-@[-`{-~]|[\u166d\u{111c9}]/gu;
const CONTROL = /(?![\t\n\r\u0890-\u08e2\u{110cd}-\u{1343f}])[\p{Cc}\p{Cf}\p{Co}\ufffd]/gu;
const HAN = /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu;
const SPACE = /\p{White_Space}/gu;
/** Without the letters that came, with other forms of them, in Unicode 12 and later. */
const DECOMPOSED = /[^\u32ff\ua7f1-\ua7f4\uab69\u{105c9}-\u{107ba}\u{11383}-\u{113c8}\u{11938}-\u{1ccf9}\u{1e030}-\u{1e06d}\u{1f16c}\u{1fbf0}-\u{1fbf9}]+/gu;

/** By type. @type {Record<string, (part: Part) => Normalize>} */
export const NORMALIZERS = {
  BertNormalizer: bert,
  NFKC: () => normalized("NFKC"),
  NFKD: () => normalized("NFKD"),
  Nmt: () => (text) => text
    .replace(/[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]/g, "")
    .replace(/[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]/g, " "),
  Precompiled: precompiled,
  StripAccents: () => (text) => text.replace(MARKS, ""),
};

/** @type {Record<string, (part: Part) => import("./pretokenize.js").Step>} */
export const PRE_TOKENIZERS = {
  BertPreTokenizer: () => {
    const [words, signs] = [splitter(SPACE, BEHAVIORS.Removed), splitter(PUNCTUATION, BEHAVIORS.Isolated)];
    return (piece) => words(piece).flatMap((text) => signs({ ...piece, text }));
  },
  Punctuation: ({ behavior = "Isolated" }) => splitter(PUNCTUATION, BEHAVIORS[behavior]),
};

/** @param {string} form @returns {Normalize} */
function normalized(form) {
  return (text) => text.replace(DECOMPOSED, (part) => part.normalize(form));
}

/** @param {Part} part @returns {Normalize} */
function bert({ clean_text, handle_chinese_chars, strip_accents, lowercase }) {
  /** @type {Normalize[]} */
  const steps = [];
  if (clean_text) steps.push((text) => text.replace(CONTROL, "").replace(SPACE, " "));
  if (handle_chinese_chars) steps.push((text) => text.replace(HAN, " $& "));
  if (strip_accents ?? lowercase) steps.push(normalized("NFD"), (text) => text.replace(NONSPACING, ""));
  if (lowercase) steps.push((text) => Array.from(text, (letter) => letter.toLowerCase()).join(""));
  return (text) => steps.reduce((done, apply) => apply(done), text);
}

const ENCODER = new TextEncoder();
const DECODER = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const MOST_BYTES = 6; // of a grapheme that is looked up whole: fewer than these

/**
 * SentencePiece's map of characters: the length of a trie, the trie, and texts that end with 0.
 *
 * Source: spm_precompiled 0.1.4 for what is looked up (the shortest match counts), Darts-clone for the trie's units.
 * @param {Part} part @returns {Normalize}
 */
function precompiled({ precompiled_charsmap: charsmap }) {
  const bytes = Uint8Array.from(atob(charsmap), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = view.getUint32(0, true);
  if (size % 4 || size + 4 > bytes.length) return refuse("a precompiled map of characters that is cut off");
  const trie = Uint32Array.from({ length: size / 4 }, (_, at) => view.getUint32(4 + 4 * at, true));
  const texts = bytes.subarray(4 + size);
  if (typeof Intl.Segmenter !== "function") return refuse("a precompiled map of characters, and this browser has no Intl.Segmenter,");
  const graphemes = new Intl.Segmenter("en", { granularity: "grapheme" });
  /** @param {number} unit */
  const offset = (unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);

  /** What a text becomes, null when no part of its beginning is in the map. @param {string} text */
  const replaced = (text) => {
    let at = offset(trie[0]);
    for (const byte of ENCODER.encode(text)) {
      if (byte === 0) return null;
      at ^= byte;
      const unit = trie[at] ?? 0;
      if ((unit & 0x800000ff) >>> 0 !== byte) return null;
      at ^= offset(unit);
      if (unit & 0x100) {
        const start = trie[at] & 0x7fffffff;
        return DECODER.decode(texts.subarray(start, texts.indexOf(0, start)));
      }
    }
    return null;
  };
  /** @type {Map<string, string>} */
  const cache = new Map(); // of single characters
  /** @param {string} letter */
  const single = (letter) => {
    const known = cache.get(letter);
    if (known !== undefined) return known;
    const text = replaced(letter) ?? letter;
    cache.set(letter, text);
    return text;
  };
  return (text) => {
    if (!/[^\n -~]/.test(text)) return Array.from(text, single).join(""); // each a grapheme
    return Array.from(graphemes.segment(text), ({ segment }) => {
      const letters = [...segment];
      const isWhole = letters.length > 1 && ENCODER.encode(segment).length < MOST_BYTES;
      return (isWhole ? replaced(segment) : null) ?? letters.map(single).join("");
    }).join("");
  };
}
