/** A model's own defaults for generation, from its generation_config.json: the twin of embedllm/generation/defaults.py. */

import { PackageError } from "../errors.js";

const TOP_K = 50; // transformers samples from the best 50 when do_sample is set and nothing else is said

/**
 * What a call gets that does not say otherwise.
 *
 * @template S
 * @typedef {{sampling: S, max_tokens: number | null}} Defaults null: what is left of the context
 */

/**
 * The defaults of a folder; greedy and without a limit where it says nothing. Read as transformers reads them.
 *
 * Raises PackageError for a damaged file or a value out of its range.
 * @template S
 * @param {(options: Record<string, any>) => S} sampling checks options and freezes them, such as those of rule/sampling.js
 * @param {Map<string, string>} texts
 * @returns {Defaults<S>}
 */
export function readDefaults(sampling, texts) {
  const text = texts.get("generation_config.json");
  if (text === undefined) return { sampling: sampling({ temperature: 0 }), max_tokens: null };
  try {
    const data = JSON.parse(text);
    if (data === null || typeof data !== "object" || Array.isArray(data)) throw new RangeError("no JSON object");
    /** @param {string} name @param {unknown} other */
    const value = (name, other) => data[name] ?? other;
    const repetition_penalty = value("repetition_penalty", 1);
    const options = !value("do_sample", false)
      ? { temperature: 0, repetition_penalty }
      : {
          temperature: value("temperature", 1),
          top_k: value("top_k", TOP_K),
          top_p: value("top_p", 1),
          min_p: value("min_p", 0),
          typical_p: value("typical_p", 1),
          repetition_penalty,
        };
    const limit = value("max_new_tokens", null);
    if (limit !== null && (!Number.isInteger(limit) || limit < 1)) throw new RangeError(`max_new_tokens is ${JSON.stringify(limit)}`);
    return { sampling: sampling(options), max_tokens: limit };
  } catch (error) {
    throw new PackageError(`cannot use 'generation_config.json': ${error instanceof Error ? error.message : error}.`, { cause: error });
  }
}
