// A model's session on the GPU: the names of its inputs and outputs, captured steps, and buffers that sequences leave.

import { NextToken } from "./next_token.js";
import { ON_GPU, OrtCalls, ROPE_TABLES } from "./ort_calls.js";
import { GpuBuffers } from "./webgpu_buffers.js";

/**
 * @import { Decoder } from "./model_shape.js"
 * @import { WasmModule } from "./ort_runtime.js"
 * @import { OnGpu } from "./webgpu_buffers.js"
 * @import { GpuStates } from "./webgpu_states.js"
 */

const FUNCTIONS = ["_OrtCreateBinding", "_OrtBindInput", "_OrtBindOutput", "_OrtRunWithBinding", "_OrtReleaseBinding",
  "_OrtCreateRunOptions", "_OrtAddRunConfigEntry", "_OrtReleaseRunOptions", "webgpuRegisterBuffer",
  "webgpuUnregisterBuffer"];
const BUFFER_USAGE = 128 | 4 | 8; // GPUBufferUsage: STORAGE, COPY_SRC, COPY_DST
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
   * @param {(model: GpuModel) => GpuStates} [newStates] of a recurrent model
   */
  constructor(module, device, decoder, type, isCapturing, newStates) {
    this.calls = new OrtCalls(module, FUNCTIONS);
    /** @type {number} its handle */
    this.session = module.lastSession;
    this.device = device;
    this.decoder = decoder;
    this.type = type;
    this.size = type === "float16" ? 2 : 4;
    this.takesLengths = this.captures = isCapturing;
    this.newStates = () => newStates?.(this) ?? null;
    const layers = decoder.layers.flatMap((_, layer) => ["key", "value"].map((part) => `${layer}.${part}`));
    const given = isCapturing ? ["seqlens_k", "total_sequence_length"] : ["attention_mask"];
    const states = ["past", "present"].flatMap((prefix) => [...decoder.states.keys()].map((name) => `${prefix}_${name}`));
    this.#inputs = ["input_ids", "image_features", "image_positions", ...ROPE_TABLES, ...given, ...layers.map((name) => `past_key_values.${name}`),
      "logits", ...layers.map((name) => `present.${name}`), ...states];
    this.#names = this.calls.names(this.#inputs);
    this.next = new NextToken(device, decoder.vocabulary, type);
    this.uncaptured = this.options(NOT_CAPTURED);
  }

  /** Whether attention takes lengths in a session: that for images takes a mask. @param {number} session */
  takesLengthsIn(session) {
    return this.takesLengths && session === this.session;
  }

  /** @param {string} name of an input or output */
  name(name) {
    return this.calls.module.getValue(this.#names + 4 * this.#inputs.indexOf(name), "*");
  }

  /** A tensor in a buffer of its own. @param {number} type @param {number[]} dims @param {number} bytes @returns {OnGpu} */
  place(type, dims, bytes) {
    const { device, calls, session } = this;
    const buffer = device.createBuffer({ size: 16 * Math.ceil(bytes / 16), usage: BUFFER_USAGE });
    const pointer = calls.module.webgpuRegisterBuffer(buffer, session);
    return { buffer, tensor: calls.tensor(type, pointer, dims, bytes, ON_GPU) };
  }

  /** @param {OnGpu} placed */
  free({ buffer, tensor }) {
    this.calls.module._OrtReleaseTensor(tensor);
    this.calls.module.webgpuUnregisterBuffer(buffer);
    buffer.destroy();
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
    spare?.states?.reset();
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
