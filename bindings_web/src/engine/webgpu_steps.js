// Steps on WebGPU: the KV is in GPU buffers of a fixed capacity, past and present at once, written in place.

import { DeviceError } from "../errors.js";
import { widen } from "./float_bytes.js";

/**
 * @import { Decoder } from "./model_shape.js"
 * @import { Ort } from "./ort_runtime.js"
 * @typedef {import("onnxruntime-web").Tensor} Tensor
 * @typedef {import("onnxruntime-web").InferenceSession} InferenceSession
 */

const KV_USAGE = 128 | 4 | 8; // GPUBufferUsage: STORAGE, COPY_SRC, COPY_DST
const READ_USAGE = 1 | 8; // MAP_READ, COPY_DST

/** The KV of one sequence and the steps over it. */
export class GpuSteps {
  #ort;
  #session;
  #device;
  #decoder;
  #type;
  #size;
  /** @type {Map<string, {buffer: GPUBuffer, tensor: Tensor}>} */
  #kv = new Map();
  #capacity = 0;

  /**
   * @param {Ort} ort @param {InferenceSession} session @param {GPUDevice} device @param {Decoder} decoder
   * @param {"float32" | "float16"} type of KV and logits
   */
  constructor(ort, session, device, decoder, type) {
    this.#ort = ort;
    this.#session = session;
    this.#device = device;
    this.#decoder = decoder;
    this.#type = type;
    this.#size = type === "float16" ? 2 : 4;
  }

  get capacity() {
    return this.#capacity;
  }

  /** @param {number} capacity tokens @param {number} held of them, kept */
  async grow(capacity, held) {
    const [before, old, size] = [this.#kv, this.#capacity, this.#size];
    const commands = this.#device.createCommandEncoder();
    /** @type {typeof before} */
    const grown = new Map();
    this.#device.pushErrorScope("out-of-memory");
    for (const [layer, { kvHeads, headDim }] of this.#decoder.layers.entries()) {
      for (const part of ["key", "value"]) {
        const name = `${layer}.${part}`;
        const dims = [1, kvHeads, capacity, headDim];
        const buffer = this.#device.createBuffer({ size: size * kvHeads * capacity * headDim, usage: KV_USAGE });
        grown.set(name, { buffer, tensor: this.#ort.Tensor.fromGpuBuffer(buffer, { dataType: this.#type, dims }) });
        const source = before.get(name)?.buffer;
        for (let head = 0; head < kvHeads && held && source; head++) {
          const [from, to] = [size * head * old * headDim, size * head * capacity * headDim];
          commands.copyBufferToBuffer(source, from, buffer, to, size * held * headDim);
        }
      }
    }
    this.#device.queue.submit([commands.finish()]);
    const failure = await this.#device.popErrorScope();
    for (const { buffer } of (failure ? grown : before).values()) buffer.destroy();
    if (failure) throw new DeviceError(`the GPU has no memory left for the KV cache of ${capacity} tokens.`);
    this.#kv = grown;
    this.#capacity = capacity;
  }

  /**
   * @param {ArrayLike<number>} tokens @param {number} position of the first
   * @returns {Promise<Float32Array>} the logits after the last of them
   */
  async run(tokens, position) {
    /** @type {Record<string, Tensor>} */
    const feeds = {
      input_ids: this.#integers(Array.from(tokens), [1, tokens.length]),
      attention_mask: this.#integers(new Array(position + tokens.length).fill(1), [1, position + tokens.length]),
    };
    /** @type {Record<string, Tensor | null>} */
    const fetches = { logits: null };
    for (const [name, { tensor }] of this.#kv) {
      feeds[`past_key_values.${name}`] = tensor;
      fetches[`present.${name}`] = tensor;
    }
    const found = await this.#session.run(feeds, fetches);
    const data = found.logits.data;
    if (data instanceof Float32Array) return data;
    const row = new Float32Array(data.length);
    const halves = /** @type {Uint16Array} */ (data); // or a Float16Array, in the browsers that have it
    if (halves instanceof Uint16Array) widen(halves, row);
    else row.set(halves);
    return row;
  }

  /** Copies of the keys and values of the tokens from `start` to before `stop`, each head of a tensor by itself. */
  async read(/** @type {number} */ start, /** @type {number} */ stop) {
    const pieces = this.#pieces(start, stop);
    const total = pieces.reduce((sum, [, , length]) => sum + length, 0);
    const staging = this.#device.createBuffer({ size: Math.max(total, 4), usage: READ_USAGE });
    try {
      const commands = this.#device.createCommandEncoder();
      let place = 0;
      for (const [buffer, offset, length] of pieces) {
        commands.copyBufferToBuffer(buffer, offset, staging, place, length);
        place += length;
      }
      this.#device.queue.submit([commands.finish()]);
      await staging.mapAsync(1); // GPUMapMode.READ
      const all = new Uint8Array(staging.getMappedRange().slice(0));
      place = 0;
      return pieces.map(([, , length]) => all.subarray(place, (place += length)));
    } finally {
      staging.destroy();
    }
  }

  /** @param {Uint8Array[]} pieces as read() gave them @param {number} start @param {number} stop */
  async write(pieces, start, stop) {
    this.#pieces(start, stop).forEach(([buffer, offset], place) => {
      const { buffer: bytes, byteOffset, byteLength } = pieces[place];
      this.#device.queue.writeBuffer(buffer, offset, bytes, byteOffset, byteLength);
    });
  }

  close() {
    for (const { buffer } of this.#kv.values()) buffer.destroy();
    this.#kv.clear();
    this.#capacity = 0;
  }

  /** @param {number} start @param {number} stop @returns {[GPUBuffer, offset: number, length: number][]} */
  #pieces(start, stop) {
    const [capacity, size] = [this.#capacity, this.#size];
    return this.#decoder.layers.flatMap(({ kvHeads, headDim }, layer) =>
      ["key", "value"].flatMap((part) => {
        const buffer = /** @type {{buffer: GPUBuffer}} */ (this.#kv.get(`${layer}.${part}`)).buffer;
        return Array.from({ length: kvHeads }, (_, head) => /** @type {[GPUBuffer, number, number]} */ (
          [buffer, size * (head * capacity + start) * headDim, size * (stop - start) * headDim]));
      }),
    );
  }

  /** @param {number[]} numbers @param {number[]} dims */
  #integers(numbers, dims) {
    return new this.#ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), dims);
  }
}
