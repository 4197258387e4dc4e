// Whether the CPU would answer sooner than the GPU that was taken: tried once, after a reply, while nothing is asked.
//
// Both make a short reply, the CPU in a worker that is ended after it. The result is for loads to come (engine/trials.js).

import { reason } from "../errors.js";
import { lostError } from "../worker/protocol.js";
import { replyOf } from "./options.js";
import { start } from "./create_worker.js";

/**
 * @import { Link } from "./worker_client.js"
 * @import { Placed } from "./create_worker.js"
 * @import { Chunk, Load } from "../worker/protocol.js"
 * @import { Untried } from "../engine/trials.js"
 */

const IDLE_MS = 3000; // since the last reply
const PROMPT = 64, TOKENS = 17; // of the reply of a trial
const PROMPTS = 4, STEPS = 64; // a chat's reply, in prompts of a trial and in steps
const CONVERSATION = -1; // so that no other one's KV is overwritten

export class Trial {
  #link;
  #load;
  #placed;
  #untried;
  #hasEnded = false;
  #running = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {Link} link of the model on the GPU @param {Load} load as it was loaded @param {Placed} placed @param {Untried} untried */
  constructor(link, load, placed, untried) {
    this.#link = link;
    this.#load = load;
    this.#placed = placed;
    this.#untried = untried;
  }

  /** Something is asked: a trial that runs is given up. */
  pause() {
    clearTimeout(this.#timer);
    this.#running.abort();
  }

  /** Nothing is asked any more. */
  resume() {
    this.pause();
    if (!this.#hasEnded && !this.#link.ended) this.#timer = setTimeout(() => this.#run(), IDLE_MS);
  }

  async #run() {
    const { signal } = (this.#running = new AbortController());
    const times = { webgpu: 0, wasm: /** @type {number | null} */ (null) };
    try {
      const gpu = await timed(this.#link, signal);
      times.webgpu = gpu.reply_s;
      if (gpu.step_s > this.#untried.leastStep_s) times.wasm = (await this.#timedOnCpu(signal)).reply_s;
    } catch (error) {
      if (signal.aborted) return; // the next pause is waited for
      console.info(`embedllm: no trial of 'wasm': ${reason(error)}`);
    }
    this.#hasEnded = true;
    if (times.webgpu && !this.#link.ended) this.#link.tell("rememberTrial", { ...this.#untried, times });
  }

  /** @param {AbortSignal} signal */
  async #timedOnCpu(signal) {
    const link = start(this.#placed, () => {});
    try {
      await link.call("load", { ...this.#load, device: "wasm" }, { signal });
      return await timed(link, signal);
    } finally {
      link.close(lostError("the trial has ended"));
    }
  }
}

/** Seconds of a step, and of a chat's reply. @param {Link} link @param {AbortSignal} signal */
async function timed(link, signal) {
  /** @type {Chunk | null} */
  let last = null;
  for (const first of [1, 2]) { // the first one compiles; the second does not begin with its prompt
    const prompt = Array.from({ length: PROMPT }, (_, place) => first + (place % 8));
    const reply = replyOf(prompt, { max_tokens: TOKENS, stop_tokens: [], seed: 0 }, CONVERSATION);
    for await (const chunk of link.stream(reply, signal)) last = chunk;
    signal.throwIfAborted();
  }
  link.tell("forget", { conversation: CONVERSATION });
  const { prefill_s, decode_s, tokens } = /** @type {Chunk} */ (last).statistics;
  const step_s = decode_s / (tokens - 1);
  return { step_s, reply_s: PROMPTS * prefill_s + STEPS * step_s };
}
