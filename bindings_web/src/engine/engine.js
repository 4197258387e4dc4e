// A loaded model on one device of the browser; opens sessions that share its weights.

import { DeviceError, reason } from "../errors.js";
import { Session } from "./session.js";

/**
 * @import { Decoder } from "./model_shape.js"
 * @import { Draws } from "./next_token.js"
 * @import { ImageFeatures } from "../images/features.js"
 * @import { Steps } from "./session.js"
 * @typedef {{name: string, backend: string, description: string, available: boolean, reason: string, remedy: string,
 *   memory: number, variants?: string[]}} Device variants: of the graphs that it can run, the best first
 * @typedef {{graph: Blob, weights: Blob, activations: "float32" | "float16", decoder: Decoder, hash?: string}} Parts
 *   hash: of what graph and weights hold, where that is known
 */

const GONE_MS = 300; // after a step that failed, to hear that the GPU is lost

export class Engine {
  /** whether the device failed; only another load helps then */
  isLost = false;
  isClosed = false;
  /** whether attention is right over as many tokens as there are: the patches of an image see each other all at once */
  attendsToMany = true;
  /** whether decoding replays captured steps */
  captures = false;
  /** how tokens of the request that runs will be chosen, where steps may run ahead of it @type {Draws | null} */
  draws = null;
  /** of prompts, where the model sees and one had an image @type {ImageFeatures | null} */
  images = null;
  /** told once, when it fails @type {(error: Error) => void} */
  onLost = () => {};
  /** drops what a browser remembers of it: that it is right */
  forget = () => {};
  /** settles when the device is gone, as GPUs can be @type {Promise<unknown>} */
  gone = new Promise(() => {});
  /** @type {DeviceError | null} */
  #failure = null;
  #steps;
  #close;
  #turn = Promise.resolve();

  /**
   * @param {Device} device @param {Decoder} decoder @param {number} chunk
   * @param {() => Steps} steps makes those of a new sequence @param {() => void} close
   */
  constructor(device, decoder, chunk, steps, close) {
    this.device = device;
    this.context = decoder.context;
    this.remedy = decoder.remedy;
    this.vocabulary = decoder.vocabulary;
    this.chunk = chunk;
    this.#steps = steps;
    this.#close = close;
  }

  /** A new sequence. @param {number} [capacity] tokens there will be room for from the first feed on */
  open(capacity = 0) {
    const { context, vocabulary, remedy } = this;
    const chunk = this.chunk;
    return new Session(
      this.#steps(),
      {
        context, vocabulary, chunk, remedy,
        draws: () => this.draws,
        images: () => this.images,
        fail: (error) => this.#failed(error),
        alone: (work) => this.#alone(work),
        after: (work) => this.#after(work),
      },
      capacity,
    );
  }

  close() {
    this.isClosed = true;
    void this.#after(async () => (this.#close(), this.images?.close()));
  }

  /** The DeviceError that ended this engine; ONNX Runtime's binding is in no known state after one. */
  fail(/** @type {unknown} */ error) {
    if (this.#failure) return this.#failure;
    this.#failure =
      error instanceof DeviceError ? error : new DeviceError(`'${this.device.name}' failed: ${reason(error)}`, { cause: error });
    this.isLost = true;
    this.forget();
    this.onLost(this.#failure);
    return this.#failure;
  }

  /** What ended it: that the GPU was lost, if it was, and not which step of it failed for that. @param {unknown} error */
  async #failed(error) {
    await Promise.race([this.gone, new Promise((resolve) => setTimeout(resolve, GONE_MS))]);
    return this.fail(error);
  }

  /** One step at a time. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
  #alone(work) {
    return this.#after(() => {
      if (this.isLost) throw new DeviceError(`'${this.device.name}' failed before; load the model again.`);
      return work();
    });
  }

  /** Runs it when what was asked for before has ended, well or not. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
  #after(work) {
    const done = this.#turn.then(work);
    this.#turn = done.then(
      () => {},
      () => {},
    );
    return done;
  }
}
