/** A model's own defaults for generation, from its generation_config.json: the twin of embedllm/generation/defaults.py. */

import { PackageError, reason } from "../errors.js";
import { isObject } from "./manifest.js";
import { Sampling } from "../sampling/options.js";

const TOP_K = 50; // transformers samples from the best 50 when do_sample is set and nothing else is said
const RARE = ["bad_words_ids", "suppress_tokens"];

/**
 * What a call gets that does not say otherwise. max_tokens: null for what is left of the context. bans: of words, of every reply.
 *
 * @typedef {{sampling: Sampling, max_tokens: number | null, bans: import("../sampling/bans.js").MakeBans | null}} Defaults
 */

/**
 * The defaults of a folder; greedy and without a limit where it says nothing. Read as transformers reads them.
 *
 * Rejects with PackageError for a damaged file or a value out of its range.
 * @param {Map<string, string>} texts
 * @returns {Promise<Defaults>}
 */
export async function readDefaults(texts) {
  const text = texts.get("generation_config.json");
  if (text === undefined) return { sampling: new Sampling({ temperature: 0 }), max_tokens: null, bans: null };
  try {
    const data = JSON.parse(text);
    if (!isObject(data)) throw new RangeError("no JSON object");
    /** @param {string} name @param {unknown} other */
    const value = (name, other) => data[name] ?? other;
    const always = { repetition_penalty: value("repetition_penalty", 1), no_repeat_ngram: value("no_repeat_ngram_size", 0) };
    const options = !value("do_sample", false)
      ? { temperature: 0 }
      : {
          temperature: value("temperature", 1),
          top_k: value("top_k", TOP_K),
          top_p: value("top_p", 1),
          min_p: value("min_p", 0),
          typical_p: value("typical_p", 1),
        };
    const limit = value("max_new_tokens", null);
    if (limit !== null && (!Number.isInteger(limit) || limit < 1)) throw new RangeError(`max_new_tokens is ${JSON.stringify(limit)}`);
    const { bans = null, ...biases } = RARE.some((name) => data[name]) ? (await import("../sampling/bans.js")).readBans(data) : {};
    return { sampling: new Sampling({ ...always, ...options, ...biases }), max_tokens: limit, bans };
  } catch (error) {
    throw new PackageError(`cannot use 'generation_config.json': ${reason(error)}.`, { cause: error });
  }
}
