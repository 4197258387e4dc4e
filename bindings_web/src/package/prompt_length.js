// Refuses a text that is far too long, before all of it is tokenized, and one with tokens that the model does not have: the
// twin of embedllm/text/prompt_length.py.

import { ContextFull } from "../errors.js";

const BLOCK = 1 << 15; // UTF-16 units that are counted in one call
const USUAL = 8; // units a token; a text of fewer of them for each token of the context is tokenized as it is
const CUT = /[\ud800-\udbff]$/; // half of a character at the end of a block

/**
 * Throws ContextFull for a text that has more than twice as many tokens as the context holds.
 *
 * @param {string} text
 * @param {{encode: (text: string, options: {special: boolean}) => ArrayLike<number>}} codec
 * @param {number} context
 */
export function checkLength(text, codec, context) {
  if (text.length <= Math.max(BLOCK, USUAL * context)) return;
  let tokens = 0;
  for (let start = 0, stop = 0; start < text.length; start = stop) {
    stop = start + BLOCK + (CUT.test(text.slice(start, start + BLOCK)) ? 1 : 0);
    tokens += codec.encode(text.slice(start, stop), { special: false }).length;
    if (tokens > 2 * context) {
      throw new ContextFull(
        `the prompt has ${text.length} characters, more than ${tokens} tokens; ${context} can be held together with the ` +
          "reply. Shorten the prompt.",
        { tokens, limit: context },
      );
    }
  }
}

/**
 * Throws RangeError for a token of a text that the model's embedding has no row for, by its text; else returns the tokens.
 *
 * @param {number[]} tokens
 * @param {{tokenText: (token: number) => string | null}} codec
 * @param {number} vocabulary
 * @param {number} [imageToken] one that images take the place of
 */
export function checkKnown(tokens, codec, vocabulary, imageToken) {
  const token = tokens.find((one) => one >= vocabulary && one !== imageToken);
  if (token === undefined) return tokens;
  throw new RangeError(`the prompt has '${codec.tokenText(token)}', token ${token} of the tokenizer; the model has ${vocabulary}.`);
}
