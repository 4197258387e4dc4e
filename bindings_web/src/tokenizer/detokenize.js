/** Spellings of tokens -> text: the decoder of a tokenizer.json. */

import { BYTES } from "./byte_letters.js";
import { refuse, regularExpression, sequence } from "./parts.js";

/** @typedef {import("./parts.js").Library} Library */
/** @typedef {import("./parts.js").Part} Part */
/** @typedef {(tokens: string[]) => string[]} Step */

const ENCODER = new TextEncoder();
const LOSSY = new TextDecoder("utf-8", { ignoreBOM: true });
const STRICT = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** The order of these matters. @type {[string, string][]} */
const CLEAN_UP = [
  [" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"], [" n't", "n't"], [" 'm", "'m"], [" do not", " don't"],
  [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"],
];

/** @param {Library} library @param {Part | null} part @returns {(tokens: string[]) => string} */
export function decoder(library, part) {
  const steps = sequence(part, "decoders").map((one) => step(library, one));
  if (part === null || part === undefined) return (tokens) => tokens.join(" ");
  return (tokens) => steps.reduce((done, apply) => apply(done), tokens).join("");
}

/** @param {Library} library @param {Part} part @returns {Step} */
function step(library, part) {
  switch (part.type) {
    case "ByteLevel": return byteLevel;
    case "ByteFallback": return byteFallback;
    case "Fuse": return (tokens) => [tokens.join("")];
    case "Replace": {
      const pattern = regularExpression(library, part.pattern);
      return (tokens) => tokens.map((token) => token.replace(pattern, () => part.content));
    }
    case "Strip": return (tokens) => tokens.map((token) => stripped([...token], part.content, part.start, part.stop));
    case "Metaspace": {
      const isLed = (part.prepend_scheme ?? "always") !== "never";
      return (tokens) => tokens.map((token, at) => token.replaceAll(part.replacement, at === 0 && isLed ? "" : " "));
    }
    case "WordPiece": return (tokens) => tokens.map((token, at) => {
      const word = at === 0 ? token : token.startsWith(part.prefix) ? token.slice(part.prefix.length) : ` ${token}`;
      return part.cleanup ? CLEAN_UP.reduce((text, [from, to]) => text.replaceAll(from, to), word) : word;
    });
    case "BPEDecoder": return (tokens) => tokens.map((token, at) => token.replaceAll(part.suffix, at === tokens.length - 1 ? "" : " "));
    default: return refuse(`the decoder '${part.type}'`);
  }
}

/** A token with any other character stands for its own UTF-8. @param {string[]} tokens */
function byteLevel(tokens) {
  const bytes = tokens.flatMap((token) => {
    const own = Array.from(token, (letter) => BYTES.get(letter));
    return own.includes(undefined) ? [...ENCODER.encode(token)] : own;
  });
  return [LOSSY.decode(Uint8Array.from(/** @type {number[]} */ (bytes)))];
}

/** A run of byte tokens is a text, or a replacement character for each byte. @param {string[]} tokens */
function byteFallback(tokens) {
  /** @type {string[]} */
  const made = [];
  /** @type {number[]} */
  let run = [];
  const end = () => {
    try {
      if (run.length) made.push(STRICT.decode(Uint8Array.from(run)));
    } catch {
      for (let left = run.length; left > 0; left--) made.push("\ufffd");
    }
    run = [];
  };
  for (const token of tokens) {
    const digits = token.match(/^<0x([0-9A-Fa-f]{2})>$/)?.[1];
    if (digits) {
      run.push(parseInt(digits, 16));
    } else {
      end();
      made.push(token);
    }
  }
  end();
  return made;
}

/** @param {string[]} letters @param {string} content @param {number} most at the start @param {number} mostLast */
function stripped(letters, content, most, mostLast) {
  let start = 0;
  while (start < Math.min(most, letters.length) && letters[start] === content) start++;
  let stop = letters.length;
  while (letters.length - stop < mostLast && stop > 0 && letters[stop - 1] === content) stop--;
  return letters.slice(start, Math.max(start, stop)).join("");
}
