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
    /** most tokens of a sequence @type {number} */
    this.context = manifest.context;
    /** @type {number} */
    this.vocabulary = architecture.embedding.rows;
    /** of each layer's keys and values; a layer that reads an earlier one's has none @type {Heads[]} */
    this.layers = architecture.layers
      .filter((/** @type {any} */ layer) => layer.attention.kv_from === undefined)
      .map((/** @type {any} */ layer) => ({ kvHeads: layer.attention.kv_heads, headDim: layer.attention.head_dim }));
    this.sharesKv = architecture.layers.some((/** @type {any} */ { attention }) => attention.kv_from !== undefined);
    this.capsScores = architecture.layers.some((/** @type {any} */ { attention }) => attention.softcap);
    /** those of products, each once @type {Map<string, Matrix>} */
    this.matrices = new Map();
    collect({ ...architecture, vision: undefined }, this.matrices); // images/ reads the encoder's by itself
    this.matrices.delete(architecture.per_layer_embedding?.table.name);
    if (architecture.head?.name !== architecture.embedding.name) this.matrices.delete(architecture.embedding.name);
    /** by the name of the matrix @type {Map<string, Packing>} */
    this.packings = new Map(Object.entries(manifest.quantization ?? {}));
  }

  /** Bytes of all matrices of products as float32. */
  get floatBytes() {
    let sum = 0;
    for (const { rows, columns } of this.matrices.values()) sum += 4 * rows * columns;
    return sum;
  }
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
