// What the description of a model in its manifest says about the sizes of what a device holds.

import { PackageError } from "../errors.js";

/**
 * @typedef {{name: string, rows: number, columns: number}} Matrix
 * @typedef {{bits: number, group_size: number, symmetric: boolean, has_minimum?: boolean, column_order?: string}} Packing
 * @typedef {{kvHeads: number, headDim: number}} Heads
 */

export class Decoder {
  /** @param {any} manifest as read from embedllm.json */
  constructor(manifest) {
    const architecture = manifest.architecture;
    if (typeof architecture !== "object" || !Array.isArray(architecture?.layers) || !architecture.embedding) {
      throw new PackageError("the manifest has no 'architecture' with layers; export the folder again.");
    }
    /** @type {string} */
    this.name = manifest.name;
    /** most tokens of a sequence @type {number} */
    this.context = manifest.context;
    /** what helps where that is too few */
    this.remedy = "export with a larger --context";
    /** @type {number} */
    this.vocabulary = architecture.embedding.rows;
    /** of each layer's keys and values; one that reads an earlier one's, or has no attention, has none @type {Heads[]} */
    this.layers = architecture.layers
      .filter((/** @type {any} */ { attention }) => attention.kind === undefined && attention.kv_from === undefined)
      .map((/** @type {any} */ layer) => ({ kvHeads: layer.attention.kv_heads, headDim: layer.attention.head_dim }));
    /** shapes of what recurrent layers keep of a sequence, by the end of the names of inputs and outputs */
    this.states = statesOf(architecture.layers);
    this.sharesKv = architecture.layers.some((/** @type {any} */ { attention }) => attention.kv_from !== undefined);
    this.capsScores = architecture.layers.some((/** @type {any} */ { attention }) => attention.softcap);
    /** by the name of the matrix @type {Map<string, Packing>} */
    this.packings = new Map(Object.entries(manifest.quantization ?? {}));
    /** those of products that are packed, each once: small ones, as what chooses experts, stay floats @type {Map<string, Matrix>} */
    this.matrices = new Map();
    collect({ ...architecture, vision: undefined }, this.matrices); // images/ reads the encoder's by itself
    this.matrices.delete(architecture.per_layer_embedding?.table?.name);
    for (const name of this.matrices.keys()) if (!this.packings.has(name)) this.matrices.delete(name);
    if (architecture.head?.name !== architecture.embedding.name) this.matrices.delete(architecture.embedding.name);
  }

  /** Has sequences hold no more tokens; the graph would hold more. Throws RangeError for more than that. @param {number} tokens */
  limitContext(tokens) {
    if (tokens > this.context) {
      throw new RangeError(`context is ${tokens} tokens, and '${this.name}' holds ${this.context} at most. Leave it out, or ${this.remedy}.`);
    }
    if (tokens < this.context) [this.context, this.remedy] = [tokens, "load with a larger context"];
  }

  /** Bytes of all matrices of products as float32. */
  get floatBytes() {
    let sum = 0;
    for (const { rows, columns } of this.matrices.values()) sum += 4 * rows * columns;
    return sum;
  }
}

/** As embedllm/package/recurrent_state.py has them. @param {any[]} layers @returns {Map<string, number[]>} */
function statesOf(layers) {
  /** @type {Map<string, number[]>} */
  const states = new Map();
  for (const [index, { attention, ssm }] of layers.entries()) {
    const mixer = ssm ?? attention;
    const parts = { ShortConv: ["x"], DeltaNet: ["q", "k", "v"], Mamba2: ["x", "b", "c"] }[/** @type {string} */ (mixer.kind)];
    if (!parts) continue; // attention has no kind
    states.set(`conv.${index}`, [mixer.kernel - 1, parts.reduce((sum, part) => sum + mixer[part].rows, 0)]);
    if (mixer.kind === "DeltaNet") states.set(`recurrent.${index}`, [mixer.value_heads, mixer.key_dim, mixer.value_dim]);
    if (mixer.kind === "Mamba2") states.set(`recurrent.${index}`, [mixer.heads, mixer.state_dim, mixer.head_dim]);
  }
  return states;
}

/**
 * Every matrix in a description, wherever it stands.
 *
 * @param {any} value @param {Map<string, Matrix>} found
 */
function collect(value, found) {
  if (typeof value !== "object" || value === null) return;
  if (typeof value.name === "string" && value.rows && value.columns) found.set(value.name, value);
  for (const inner of Object.values(value)) collect(inner, found);
}
