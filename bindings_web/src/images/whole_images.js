// Images whose tokens attend to one another (Gemma 3): each is a run of its own, by a second graph into the KV of text.
//
// Its attention is in plain operators, behind the runtime's own that appends: that of onnxruntime-web 1.30 is causal only.

import { FIRST_ID, firstOf } from "./features.js";
import { openSession } from "./further_session.js";

/** @import { Loaded } from "../worker/load_model.js" */

/** By the graph of text, whose type of KV it has. @type {Record<string, string>} */
const VARIANTS = { "webgpu-float16": "images-webgpu-float16" };
const USUAL = "images-gpu-float32"; // its operators are the CPU's, too

/** @param {number} token @param {number} following whether both are neighbouring rows of one image */
const isNextRow = (token, following) => token >= FIRST_ID && following === token + 1 && firstOf(following) < following;

export class WholeImages {
  #loaded;
  /** @type {ReturnType<typeof openSession> | null} */
  #session = null;

  /** @param {Loaded} loaded */
  constructor(loaded) {
    this.#loaded = loaded;
  }

  /** Rejects with DeviceError where the folder lacks the graph, or ONNX Runtime does not load it. */
  async open() {
    this.#session ??= openSession(this.#loaded, VARIANTS[this.#loaded.graph.variant] ?? USUAL, this.#loaded.device.name !== "wasm");
    this.#session.catch(() => (this.#session = null)); // so that the next image tries again
    return (await this.#session).handle;
  }

  /** The last place at or before one that a prompt may be fed from. @param {readonly number[]} tokens @param {number} at */
  startOfRun(tokens, at) {
    while (at > 0 && at < tokens.length && isNextRow(tokens[at - 1], tokens[at])) at--;
    return at;
  }

  /** Where a run ends: behind an image, or in front of one. @param {readonly number[]} tokens @param {number} at @param {number} chunk */
  endOfRun(tokens, at, chunk) {
    let end = at + 1;
    if (tokens[at] >= FIRST_ID) while (isNextRow(tokens[end - 1], tokens[end])) end++;
    else while (end < tokens.length && end < at + chunk && tokens[end] < FIRST_ID) end++;
    return end;
  }

  close() {
    void this.#session?.then(({ session }) => session.release(), () => {});
    this.#session = null;
  }
}
