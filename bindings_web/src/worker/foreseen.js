// How Python will choose the tokens of a reply, for a GPU that guesses them. Loaded where one does.

import { drawsBySeed } from "../sampling/draws.js";
import { Sampling } from "../sampling/options.js";
import { readDefaults } from "../package/generation_config.js";

/**
 * @import { Draws } from "../engine/next_token.js"
 * @import { Reply } from "./protocol.js"
 */

/**
 * By a seed, which is drawn here where a request has none; the request with it. draws: null where Python's choice
 * depends on more than the row.
 *
 * @param {Reply} reply @param {Map<string, string>} texts @param {boolean} isHeld to a format
 * @returns {Promise<{reply: Reply, draws: Draws | null}>}
 */
export async function foreseen(reply, texts, isHeld) {
  try {
    const defaults = await readDefaults(texts);
    const sampling = new Sampling({ ...defaults.sampling, ...reply.sampling });
    if (isHeld || defaults.bans || sampling.no_repeat_ngram) return { reply, draws: null };
    const seed = sampling.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    const draws = drawsBySeed(new Sampling({ ...sampling, seed }), reply.max_tokens ?? Infinity);
    return { reply: { ...reply, sampling: { ...reply.sampling, seed } }, draws };
  } catch (error) {
    if (error instanceof RangeError) return { reply, draws: null }; // Python refuses it, or knows more options
    throw error;
  }
}
