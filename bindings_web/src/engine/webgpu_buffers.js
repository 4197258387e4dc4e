// What the steps of a sequence on WebGPU read and write: buffers at fixed places, bound to ONNX Runtime once.

import { DeviceError } from "../errors.js";
import { FLOAT, FLOAT16, INT32, INT64, ON_GPU, OrtCalls } from "./ort_calls.js";
import { NextToken } from "./next_token.js";

/**
 * @import { WithImages } from "../images/features.js"
 * @import { Decoder } from "./model_shape.js"
 * @import { WasmModule } from "./ort_runtime.js"
 * @typedef {{buffer: GPUBuffer, tensor: number}} OnGpu a tensor over a buffer
 * @typedef {{handle: number, options: number}} Graph captured, or to be
 */

const BUFFER_USAGE = 128 | 4 | 8; // GPUBufferUsage: STORAGE, COPY_SRC, COPY_DST
const FUNCTIONS = ["_OrtCreateBinding", "_OrtBindInput", "_OrtBindOutput", "_OrtRunWithBinding", "_OrtReleaseBinding",
  "_OrtCreateRunOptions", "_OrtAddRunConfigEntry", "_OrtReleaseRunOptions", "webgpuRegisterBuffer",
  "webgpuUnregisterBuffer"];
const NOT_CAPTURED = -1; // as the number of a graph
/** Most steps that a model captures: what a captured one takes of memory comes back only with the session. */
const MOST_GRAPHS = 64;

/** A model's session on the GPU, and what all its sequences share. */
export class GpuModel {
  /** whether attention takes lengths as inputs, and not a mask */
  takesLengths;
  /** whether steps are captured and replayed */
  captures;
  #graphs = 0;
  /** @type {Map<number, GpuBuffers>} of closed sequences, by their capacity: with them go captured steps */
  #spare = new Map();
  /** @type {number} */
  #names;
  /** @type {string[]} */
  #inputs;

  /**
   * @param {WasmModule} module whose last session it is @param {GPUDevice} device @param {Decoder} decoder
   * @param {"float32" | "float16"} type of KV and logits @param {boolean} isCapturing its graph takes lengths
   */
  constructor(module, device, decoder, type, isCapturing) {
    this.calls = new OrtCalls(module, FUNCTIONS);
    /** @type {number} its handle */
    this.session = module.lastSession;
    this.device = device;
    this.decoder = decoder;
    this.type = type;
    this.size = type === "float16" ? 2 : 4;
    this.takesLengths = this.captures = isCapturing;
    const layers = decoder.layers.flatMap((_, layer) => ["key", "value"].map((part) => `${layer}.${part}`));
    const given = isCapturing ? ["seqlens_k", "total_sequence_length"] : ["attention_mask"];
    this.#inputs = ["input_ids", "image_features", "image_positions", ...given, ...layers.map((name) => `past_key_values.${name}`),
      "logits", ...layers.map((name) => `present.${name}`)];
    this.#names = this.calls.names(this.#inputs);
    this.next = new NextToken(device, decoder.vocabulary, type);
    this.uncaptured = this.options(NOT_CAPTURED);
  }

  /** @param {string} name of an input or output */
  name(name) {
    return this.calls.module.getValue(this.#names + 4 * this.#inputs.indexOf(name), "*");
  }

  /** Options of a run: under which number it is captured. @param {number} graph */
  options(graph) {
    const { calls, calls: { module } } = this;
    const options = module._OrtCreateRunOptions(2, 0, false, 0);
    const entry = calls.names(["gpu_graph_id", `${graph}`]);
    const [key, value] = [entry, entry + 4].map((place) => module.getValue(place, "*"));
    calls.check(module._OrtAddRunConfigEntry(options, key, value), "took no number of a graph");
    calls.freeNames(entry);
    return options;
  }

  /** Options of a step that will be captured; 0 when none is any more. */
  capturing() {
    return this.captures && this.#graphs < MOST_GRAPHS ? this.options(this.#graphs++) : 0;
  }

  /** Raises DeviceError where the GPU has no memory for them. @param {number} capacity tokens */
  async take(capacity) {
    const spare = this.#spare.get(capacity);
    this.#spare.delete(capacity);
    if (spare) return spare;
    try {
      return await GpuBuffers.make(this, capacity);
    } catch (error) {
      if (!this.#spare.size) throw error;
      this.#free();
      return GpuBuffers.make(this, capacity);
    }
  }

  /** Keeps a sequence's buffers for the next one, if there are no others as large. @param {GpuBuffers} buffers */
  give(buffers) {
    const { capacity, isCaptured } = buffers;
    if (this.captures && isCaptured && !this.#spare.has(capacity)) this.#spare.set(capacity, buffers);
    else buffers.close();
  }

  #free() {
    for (const buffers of this.#spare.values()) buffers.close();
    this.#spare.clear();
  }

  close() {
    this.captures = false; // nothing is kept any more
    this.#free();
    this.next.close();
    this.calls.freeNames(this.#names);
    this.calls.module._OrtReleaseRunOptions(this.uncaptured);
  }
}

/** Buffers for the KV and the steps of one sequence. */
export class GpuBuffers {
  /** @type {Map<string, OnGpu>} */
  kv = new Map();
  /** whether steps are replayed */
  isCaptured = false;
  #model;
  /** @type {OnGpu[]} */
  #all = [];
  /** @type {number[]} memory of the host's */
  #memory = [];
  /** @type {number[]} tensors over that */
  #tensors = [];
  /** @type {number[]} */
  #bindings = [];
  #prompts = 0;
  #withImages = 0; // bound to nothing that a prompt of text has not
  #steps = 0;
  #options = 0;
  #results;
  #host = 0; // the mask's ones, or the total length

  /** @param {GpuModel} model @param {number} capacity tokens */
  constructor(model, capacity) {
    this.#model = model;
    this.capacity = capacity;
    const { decoder, type, size, calls } = model;
    const kind = type === "float16" ? FLOAT16 : FLOAT;
    for (const [layer, { kvHeads, headDim }] of decoder.layers.entries()) {
      for (const part of ["key", "value"]) {
        const dims = [1, kvHeads, capacity, headDim];
        this.kv.set(`${layer}.${part}`, this.#place(kind, dims, size * kvHeads * capacity * headDim));
      }
    }
    this.logits = this.#place(kind, [1, 1, decoder.vocabulary], size * decoder.vocabulary);
    this.token = this.#place(INT64, [1, 1], 8);
    this.length = this.#place(INT32, [1], 4);
    this.#results = calls.allocate(4 * (1 + this.kv.size));
    this.#memory.push(this.#results);
  }

  /** Raises DeviceError where the GPU has no memory. @param {GpuModel} model @param {number} capacity */
  static async make(model, capacity) {
    model.device.pushErrorScope("out-of-memory");
    const made = new GpuBuffers(model, capacity);
    if (await model.device.popErrorScope()) {
      made.close();
      throw new DeviceError(`the GPU has no memory left for the KV cache of ${capacity} tokens.`);
    }
    try {
      await made.#bind();
      return made;
    } catch (error) {
      made.close();
      throw error;
    }
  }

  /** A tensor in a buffer of its own. @param {number} type @param {number[]} dims @param {number} bytes */
  #place(type, dims, bytes) {
    const { device, calls, session } = this.#model;
    const buffer = device.createBuffer({ size: 16 * Math.ceil(bytes / 16), usage: BUFFER_USAGE });
    const pointer = calls.module.webgpuRegisterBuffer(buffer, session);
    const made = { buffer, tensor: calls.tensor(type, pointer, dims, bytes, ON_GPU) };
    this.#all.push(made);
    return made;
  }

  async #bind() {
    const { calls, takesLengths, next } = this.#model;
    this.#host = calls.allocate(8 * this.capacity);
    this.#memory.push(this.#host);
    if (!takesLengths) calls.longs(this.#host, this.capacity).fill(1n);
    this.#prompts = await this.#binding();
    if (!takesLengths) return;
    this.group = next.bound({ logits: this.logits.buffer, token: this.token.buffer, length: this.length.buffer });
    this.#steps = await this.#binding();
    await this.#input(this.#steps, "input_ids", this.token.tensor);
    const total = calls.place(INT32, [1], 4);
    calls.module.setValue(total.pointer, this.capacity, "i32"); // docs/webgpu.md#capture
    this.#memory.push(total.pointer);
    this.#tensors.push(total.tensor);
    await this.#input(this.#steps, "total_sequence_length", total.tensor);
    this.#options = this.#model.capturing();
    this.isCaptured = this.#options !== 0;
  }

  /** Binds what is the same in each run. */
  async #binding() {
    const { calls, takesLengths, session } = this.#model;
    const binding = calls.module._OrtCreateBinding(session);
    if (!binding) throw new DeviceError(`ONNX Runtime binds nothing: ${calls.lastError()}`);
    this.#bindings.push(binding);
    if (takesLengths) await this.#input(binding, "seqlens_k", this.length.tensor);
    this.#output(binding, "logits", this.logits.tensor);
    for (const [name, { tensor }] of this.kv) {
      await this.#input(binding, `past_key_values.${name}`, tensor);
      this.#output(binding, `present.${name}`, tensor);
    }
    return binding;
  }

  /** @param {number} binding @param {string} name @param {number} tensor */
  async #input(binding, name, tensor) {
    const { calls } = this.#model;
    calls.check(await calls.module._OrtBindInput(binding, this.#model.name(name), tensor), `cannot bind '${name}'`);
  }

  /** @param {number} binding @param {string} name @param {number} tensor */
  #output(binding, name, tensor) {
    const { calls } = this.#model;
    calls.check(calls.module._OrtBindOutput(binding, this.#model.name(name), tensor, 0), `cannot bind '${name}'`);
  }

  /**
   * Computes the row after these tokens.
   *
   * @param {ArrayLike<number>} tokens @param {number} position of the first @param {WithImages | null} images among them
   */
  async feed(tokens, position, images) {
    const { calls, takesLengths, uncaptured } = this.#model;
    const end = position + tokens.length;
    const binding = images ? (this.#withImages ||= await this.#binding()) : this.#prompts;
    const ids = calls.place(INT64, [1, tokens.length], 8 * tokens.length);
    const seen = images?.inputs(calls);
    let host = 0;
    try {
      calls.longs(ids.pointer, tokens.length).set(Array.from(tokens, BigInt));
      await this.#input(binding, "input_ids", ids.tensor);
      for (const [name, { tensor }] of seen ?? []) await this.#input(binding, name, tensor);
      if (takesLengths) {
        this.#write(this.length, [end - 1]);
        calls.module.setValue(this.#host, end, "i32");
        host = calls.tensor(INT32, this.#host, [1], 4);
      } else host = calls.tensor(INT64, this.#host, [1, end], 8 * end);
      await this.#input(binding, takesLengths ? "total_sequence_length" : "attention_mask", host);
      await this.#run(binding, uncaptured);
    } finally {
      if (host) calls.module._OrtReleaseTensor(host);
      calls.release([ids, ...(seen?.values() ?? [])]);
    }
  }

  /** Says which token the next step takes, in place of the guess. @param {number} token @param {number} position */
  setNext(token, position) {
    this.#write(this.token, [token, 0]);
    this.#write(this.length, [position]);
  }

  /** Computes the row after the next token; only where steps are captured. The first time captures it. */
  async step() {
    await this.#run(this.#steps, this.#options);
  }

  /** @param {number} binding @param {number} options */
  async #run(binding, options) {
    const { calls, calls: { module }, session } = this.#model;
    const count = 1 + this.kv.size;
    calls.check(await module._OrtRunWithBinding(session, binding, count, this.#results, options), "failed");
    for (let place = 0; place < count; place++) {
      module._OrtReleaseTensor(module.getValue(this.#results + 4 * place, "*"));
    }
  }

  /** @param {OnGpu} place @param {number[]} numbers 32 bits each */
  #write({ buffer }, numbers) {
    this.#model.device.queue.writeBuffer(buffer, 0, Int32Array.from(numbers));
  }

  close() {
    const { module } = this.#model.calls;
    for (const binding of this.#bindings) module._OrtReleaseBinding(binding);
    for (const { buffer, tensor } of this.#all) {
      module._OrtReleaseTensor(tensor);
      module.webgpuUnregisterBuffer(buffer);
      buffer.destroy();
    }
    for (const tensor of this.#tensors) module._OrtReleaseTensor(tensor);
    for (const pointer of this.#memory) module._free(pointer);
    if (this.#options) module._OrtReleaseRunOptions(this.#options);
  }
}
