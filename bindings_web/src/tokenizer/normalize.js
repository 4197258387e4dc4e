/** Text -> text, before it is cut: the normalizer of a tokenizer.json. */

import { refuse, regularExpression, sequence } from "./parts.js";
import { byteLetters } from "./pretokenize.js";

/** @typedef {import("./parts.js").Library} Library */
/** @typedef {import("./parts.js").Part} Part */
/** @typedef {(text: string) => string} Normalize */

const SPACE = /\p{White_Space}/u;

/** @param {Library} library @param {Part | null} part @param {Record<string, (part: Part) => Normalize>} more of encoder_parts.js @returns {Normalize} */
export function normalizer(library, part, more) {
  const steps = sequence(part, "normalizers").map((one) => more[one.type]?.(one) ?? step(library, one));
  return (text) => steps.reduce((done, apply) => apply(done), text);
}

/** @param {Library} library @param {Part} part @returns {Normalize} */
function step(library, part) {
  switch (part.type) {
    case "NFC": case "NFD": return (text) => text.normalize(part.type);
    case "Lowercase": return (text) => Array.from(text, (letter) => letter.toLowerCase()).join(""); // alone: no final sigma
    case "ByteLevel": return byteLetters;
    case "Prepend": return (text) => (text === "" ? "" : part.prepend + text);
    case "Replace": {
      const pattern = regularExpression(library, part.pattern);
      return (text) => text.replace(pattern, () => part.content);
    }
    case "Strip": return (text) => {
      let [start, stop] = [0, text.length];
      while (part.strip_left && start < stop && SPACE.test(text[start])) start++;
      while (part.strip_right && stop > start && SPACE.test(text[stop - 1])) stop--;
      return text.slice(start, stop);
    };
    default: return refuse(`the normalizer '${part.type}'`);
  }
}
