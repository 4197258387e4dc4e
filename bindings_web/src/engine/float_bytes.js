// The file "weights.float32" of the wasm graph, which is on no disk: matrices as float32, made while they are read.
//
// Of packed matrices ONNX Runtime's wasm build unpacks all of one at every step, which takes five times as long as the
// product (docs/web.md#wasm). docs/format.md has the order of the matrices in this file.

import { readBlob } from "./blob_bytes.js";
import { PackageError } from "../errors.js";

/**
 * @import { Decoder, Matrix, Packing } from "./model_shape.js"
 * @typedef {{dtype: string, shape: number[], start: number, end: number}} Entry a tensor's place in the weights file
 */

export const FLOAT_FILE = "weights.float32";

export class FloatBytes extends Uint8Array {
  #weights;
  #size = 0;
  /** @type {Map<string, Entry>} */
  #entries;
  /** @type {{matrix: Matrix, packing: Packing, start: number}[]} in the order of their places */
  #placed = [];

  /** @param {Blob} weights weights.safetensors @param {Decoder} decoder */
  constructor(weights, decoder) {
    super(0);
    this.#weights = weights;
    this.#entries = readHeader(weights);
    const matrices = [...decoder.matrices.values()];
    matrices.sort((one, other) => this.#entry(`${one.name}.weight`).start - this.#entry(`${other.name}.weight`).start);
    for (const matrix of matrices) {
      const packing = /** @type {Packing} */ (decoder.packings.get(matrix.name));
      this.#placed.push({ matrix, packing, start: this.#size });
      this.#size += 4 * matrix.rows * matrix.columns;
    }
  }

  /** @override @returns {number} */
  get byteLength() {
    return this.#size;
  }

  /**
   * Whole matrices: tensors of the graph are one or several neighbours.
   *
   * @override @param {number} [start] @param {number} [end] @returns {Uint8Array<ArrayBuffer>}
   */
  subarray(start = 0, end = this.#size) {
    const floats = new Float32Array((end - start) / 4);
    let at = start;
    for (const { matrix, packing, start: place } of this.#placed) {
      if (place !== at || at >= end) continue;
      const size = matrix.rows * matrix.columns;
      this.#unpack(matrix, packing, floats.subarray((at - start) / 4, (at - start) / 4 + size));
      at += 4 * size;
    }
    if (at !== end) throw new RangeError(`${FLOAT_FILE} has no matrices from ${start} to ${end}`);
    return new Uint8Array(floats.buffer);
  }

  /** @param {Matrix} matrix @param {Packing} packing @param {Float32Array} into [rows, columns] */
  #unpack({ name, rows, columns }, packing, into) {
    const stored = this.#entry(`${name}.weight`);
    const bytes = this.#read(stored);
    if (stored.dtype === "F32") return into.set(new Float32Array(bytes.buffer));
    if (stored.dtype === "F16") return widen(new Uint16Array(bytes.buffer), into);
    const scales = this.#floats(`${name}.scale`);
    const minimums = packing.has_minimum ? this.#floats(`${name}.minimum`) : null;
    const zeros = packing.symmetric || minimums ? null : this.#read(this.#entry(`${name}.zero`));
    unpackGroups({ bytes, scales, minimums, zeros, rows, columns, ...packing }, into);
    if (packing.column_order) putInOrder(into, new Int32Array(this.#read(this.#entry(`${packing.column_order}.order`)).buffer));
  }

  /** @param {string} name of a number for each group @returns {Float32Array} */
  #floats(name) {
    const entry = this.#entry(name);
    const { buffer } = this.#read(entry);
    if (entry.dtype === "F32") return new Float32Array(buffer);
    const floats = new Float32Array(buffer.byteLength / 2);
    widen(new Uint16Array(buffer), floats);
    return floats;
  }

  /** @param {string} name */
  #entry(name) {
    const entry = this.#entries.get(name);
    if (!entry) throw new PackageError(`the weights file has no '${name}'; copy or export the folder again.`);
    return entry;
  }

  /** @param {Entry} entry */
  #read({ start, end }) {
    return readBlob(this.#weights, start, end);
  }
}

/** @param {Blob} weights @returns {Map<string, Entry>} */
export function readHeader(weights) {
  const length = Number(new DataView(readBlob(weights, 0, 8).buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(readBlob(weights, 8, 8 + length)));
  delete header.__metadata__;
  const entries = new Map();
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
    entries.set(name, { dtype, shape, start: 8 + length + data_offsets[0], end: 8 + length + data_offsets[1] });
  }
  return entries;
}

/**
 * (value - zero) * scale for every value of a packed matrix, or value * scale + minimum, without what fills up the last
 * group of a row.
 *
 * @param {{bytes: Uint8Array, scales: Float32Array, minimums: Float32Array | null, zeros: Uint8Array | null,
 *   rows: number, columns: number, bits: number, group_size: number}} packed bits: 4, the earlier of two values in the low half of a byte, or 8;
 *   zeros: packed likewise, each row in whole bytes; without them half of the range, and 0 beside minimums
 * @param {Float32Array} into [rows, columns]
 */
export function unpackGroups({ bytes, scales, minimums, zeros, rows, columns, bits, group_size }, into) {
  const groups = Math.ceil(columns / group_size);
  const perByte = 8 / bits;
  const rowBytes = (groups * group_size) / perByte;
  const zeroBytes = Math.ceil(groups / perByte);
  for (let row = 0; row < rows; row++) {
    for (let at = 0; at < groups; at++) {
      const scale = scales[row * groups + at];
      const first = row * columns + at * group_size;
      const last = row * columns + Math.min(columns, (at + 1) * group_size);
      let byte = row * rowBytes + (at * group_size) / perByte;
      if (bits === 8) {
        const zero = zeros ? zeros[row * zeroBytes + at] : minimums ? 0 : 128;
        for (let place = first; place < last; place++) into[place] = (bytes[byte++] - zero) * scale;
      } else {
        const zero = zeros ? (zeros[row * zeroBytes + (at >> 1)] >> (4 * (at & 1))) & 15 : minimums ? 0 : 8;
        for (let place = first; place < last; place += 2, byte++) {
          into[place] = ((bytes[byte] & 15) - zero) * scale;
          if (place + 1 < last) into[place + 1] = ((bytes[byte] >> 4) - zero) * scale;
        }
      }
      if (minimums) {
        const minimum = minimums[row * groups + at];
        for (let place = first; place < last; place++) into[place] += minimum;
      }
    }
  }
}

/**
 * Puts the columns of a matrix where they belong.
 *
 * @param {Float32Array} matrix [rows, columns] @param {Int32Array} order [columns], which of them each one is
 */
export function putInOrder(matrix, order) {
  const columns = order.length;
  for (let first = 0; first < matrix.length; first += columns) {
    const row = matrix.slice(first, first + columns);
    for (let at = 0; at < columns; at++) matrix[first + order[at]] = row[at];
  }
}

/** @type {Float32Array | null} every float16 as float32, made once */
let table = null;

/**
 * Float16 numbers, by their bits, as float32.
 *
 * @param {Uint16Array} halves @param {Float32Array} into of the same length
 */
export function widen(halves, into) {
  table ??= Float32Array.from({ length: 1 << 16 }, (_, bits) => {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const sign = bits & 0x8000 ? -1 : 1;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : (fraction / 1024) * 2 ** -14);
  });
  for (let place = 0; place < halves.length; place++) into[place] = table[halves[place]];
}
