/** The tokens that a tokenizer itself puts around a text, such as BOS: the post-processor of a tokenizer.json. */

import { refuse, sequence } from "./parts.js";

/** @typedef {import("./parts.js").Part} Part */

/** @param {Part | null} part @returns {(tokens: number[]) => number[]} */
export function postProcessor(part) {
  const steps = sequence(part, "processors").map(step);
  return (tokens) => steps.reduce((done, apply) => apply(done), tokens);
}

/** @param {Part} part @returns {(tokens: number[]) => number[]} */
function step(part) {
  switch (part.type) {
    case "ByteLevel": return (tokens) => tokens;
    case "BertProcessing": case "RobertaProcessing": return (tokens) => [part.cls[1], ...tokens, part.sep[1]];
    case "TemplateProcessing": return (tokens) => part.single.flatMap((/** @type {Part} */ item) => {
      if (item.SpecialToken) return part.special_tokens[item.SpecialToken.id].ids;
      return item.Sequence.id === "A" ? tokens : refuse("a template with a second text");
    });
    default: return refuse(`the post-processor '${part.type}'`);
  }
}
