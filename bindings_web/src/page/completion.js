// A whole reply from its chunks: as collect() in embedllm/model/model.py.

/** @import { Chunk, Statistics } from "../worker/protocol.js" */

/**
 * logprobs and top_logprobs: for each token, the latter when asked for.
 *
 * @typedef {{text: string, tokens: number[], logprobs: number[], top_logprobs: Chunk["top_logprobs"][],
 *   finish_reason: string, stopped_by: string | number | null, statistics: Statistics}} Answer
 */

/**
 * @param {AsyncIterable<Chunk>} stream  at least one, the last of them with a finish_reason
 * @returns {Promise<Answer>}
 */
export async function collected(stream) {
  /** @type {Chunk[]} */
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const steps = chunks.filter(({ token }) => token !== null);
  const { finish_reason, stopped_by, statistics } = chunks[chunks.length - 1];
  return {
    text: chunks.map(({ text }) => text).join(""),
    tokens: steps.map(({ token }) => /** @type {number} */ (token)),
    logprobs: steps.map(({ logprob }) => /** @type {number} */ (logprob)),
    top_logprobs: steps.map(({ top_logprobs }) => top_logprobs).filter(({ length }) => length),
    finish_reason: finish_reason ?? "cancelled",
    stopped_by,
    statistics,
  };
}
