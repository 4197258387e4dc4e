// What the steps of a sequence on WebGPU read and write: buffers at fixed places, bound to ONNX Runtime once.

import { DeviceError, reason } from "../errors.js";
import { FLOAT, FLOAT16, INT32, INT64, ROPE_TABLES } from "./ort_calls.js";
import { StepReplay } from "./step_replay.js";

/**
 * @import { WithImages } from "../images/features.js"
 * @import { Tables } from "../images/places.js"
 * @import { GpuModel } from "./webgpu_model.js"
 * @import { GpuStates } from "./webgpu_states.js"
 * @typedef {{buffer: GPUBuffer, tensor: number}} OnGpu a tensor over a buffer
 * @typedef {{binding: number, options: number, replay?: StepReplay | null}} StepRun options: 0 for one that is not
 *   captured; replay: null where ONNX Runtime replays it, undefined before the first run
 */

/** Buffers for the KV, the states and the steps of one sequence. */
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
  /**
   * of text, behind images that moved its positions, with images, with images in a session of their own: each bound to
   * nothing of the others' @type {number[]}
   */
  #prompts = [];
  /** @type {StepRun[]} of text, by the place of the states that they begin with */
  #steps = [];
  /** @type {{runs: StepRun[], layout: string, tables: OnGpu[]} | null} behind images that moved its positions */
  #moved = null;
  /** those of the sequence as it is */
  #current = this.#steps;
  #total = 0; // a tensor, the capacity
  #results;
  #count; // outputs of a run
  #host = 0; // the mask's ones
  #length = 0; // the total length of a prompt

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
    this.states = model.newStates();
    this.#count = 1 + this.kv.size + decoder.states.size;
    this.#results = calls.allocate(4 * this.#count);
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

  /** @param {number} type @param {number[]} dims @param {number} bytes */
  #place(type, dims, bytes) {
    const made = this.#model.place(type, dims, bytes);
    this.#all.push(made);
    return made;
  }

  async #bind() {
    const { calls, takesLengths, next } = this.#model;
    this.#host = calls.allocate(8 * this.capacity);
    this.#length = calls.allocate(8);
    this.#memory.push(this.#host, this.#length);
    calls.longs(this.#host, this.capacity).fill(1n);
    this.#prompts[0] = await this.#binding();
    if (!takesLengths) return;
    this.group = next.bound({ logits: this.logits.buffer, token: this.token.buffer, length: this.length.buffer });
    const total = calls.place(INT32, [1], 4);
    calls.module.setValue(total.pointer, this.capacity, "i32"); // docs/webgpu.md#capture
    this.#memory.push(total.pointer);
    this.#tensors.push((this.#total = total.tensor));
    this.#steps = this.#current = await this.#stepRuns();
    this.isCaptured = this.#steps.every(({ options }) => options !== 0);
  }

  /** Steps that read their token where the GPU puts it, by the place of the states. @returns {Promise<StepRun[]>} */
  async #stepRuns() {
    const runs = [];
    for (let place = 0; place < (this.states?.places ?? 1); place++) {
      const binding = await this.#binding();
      await this.#bindStates(binding, place);
      await this.#input(binding, "input_ids", this.token.tensor);
      await this.#input(binding, "total_sequence_length", this.#total);
      runs.push({ binding, options: this.#model.capturing() });
    }
    return runs;
  }

  /** Has a run read the states in a place, and write the next. @param {number} binding @param {number} [place] that of the sequence */
  async #bindStates(binding, place) {
    for (const [at, name] of (this.states?.names ?? []).entries()) {
      const { past, present } = /** @type {GpuStates} */ (this.states).at(place);
      await this.#input(binding, `past_${name}`, past[at].tensor);
      this.#output(binding, `present_${name}`, present[at].tensor);
    }
  }

  /** Binds what is the same in each run. */
  async #binding(session = this.#model.session) {
    const { calls } = this.#model;
    const takesLengths = this.#model.takesLengthsIn(session);
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
    const { calls, uncaptured } = this.#model;
    const session = images?.session || this.#model.session;
    const takesLengths = this.#model.takesLengthsIn(session);
    const end = position + tokens.length;
    const kind = !images ? 0 : images.session ? 3 : images.features ? 2 : 1;
    const binding = (this.#prompts[kind] ||= await this.#binding(session));
    const ids = calls.place(INT64, [1, tokens.length], 8 * tokens.length);
    const seen = images?.inputs(calls);
    let host = 0;
    try {
      await this.#bindStates(binding);
      calls.longs(ids.pointer, tokens.length).set(Array.from(tokens, BigInt));
      await this.#input(binding, "input_ids", ids.tensor);
      for (const [name, { tensor }] of seen ?? []) await this.#input(binding, name, tensor);
      if (takesLengths) {
        this.#write(this.length, [end - 1]);
        calls.module.setValue(this.#length, end, "i32");
        host = calls.tensor(INT32, this.#length, [1], 4);
      } else host = calls.tensor(INT64, this.#host, [1, end], 8 * end);
      await this.#input(binding, takesLengths ? "total_sequence_length" : "attention_mask", host);
      await this.#run(binding, uncaptured, session);
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

  /** Says whose positions the next steps have. @param {Tables | null} tables rotary ones; null: as in text */
  async use(tables) {
    this.#current = this.#steps;
    if (!tables) return;
    const dims = [this.capacity, tables.pairs];
    if (!this.#moved) {
      const placed = ROPE_TABLES.map(() => this.#place(FLOAT, dims, 4 * dims[0] * dims[1]));
      this.#moved = { runs: await this.#stepRuns(), layout: "", tables: placed };
      for (const { binding } of this.#moved.runs) {
        for (const [part, name] of ROPE_TABLES.entries()) await this.#input(binding, name, placed[part].tensor);
      }
    }
    const { layout, tables: placed, runs } = this.#moved;
    this.#current = runs;
    if (layout === tables.layout) return;
    tables.rows(0, this.capacity).forEach((rows, part) => this.#model.device.queue.writeBuffer(placed[part].buffer, 0, rows));
    this.#moved.layout = tables.layout;
  }

  /**
   * Computes the row after the next token; only where steps are captured. The first time captures it.
   *
   * @param {number} ahead steps that lie between the sequence as it is and this one
   * @param {GPUCommandEncoder} commands which are submitted next
   */
  async step(ahead, commands) {
    const step = this.#current[this.states?.after(ahead) ?? 0];
    if (step.replay) return step.replay.encode(commands);
    const { binding, options } = step;
    const run = () => this.#run(binding, options || this.#model.uncaptured);
    await run();
    if (options && step.replay === undefined) step.replay = await this.#replayOf(run);
  }

  /** A captured step as commands of our own, where that works. @param {() => Promise<void>} run has ONNX Runtime replay it */
  async #replayOf(run) {
    try {
      return await StepReplay.of(this.#model.device, run, this.capacity);
    } catch (error) {
      console.info(`embedllm: ONNX Runtime replays steps: ${reason(error)}`);
      return null;
    }
  }

  /** @param {number} binding @param {number} options @param {number} [session] */
  async #run(binding, options, session = this.#model.session) {
    const { calls, calls: { module } } = this.#model;
    calls.check(await module._OrtRunWithBinding(session, binding, this.#count, this.#results, options), "failed");
    for (let place = 0; place < this.#count; place++) {
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
    for (const placed of this.#all) this.#model.free(placed);
    this.states?.close();
    for (const tensor of this.#tensors) module._OrtReleaseTensor(tensor);
    for (const pointer of this.#memory) module._free(pointer);
    for (const { options } of [...this.#steps, ...(this.#moved?.runs ?? [])]) if (options) module._OrtReleaseRunOptions(options);
  }
}
