// Steps on the CPU: the KV stays in ONNX Runtime's own memory and is written in place.
//
// Through its JavaScript interface every step would copy the whole KV into that memory and out again, 100 MB at 2,000
// tokens of a small model. So this calls the C functions of onnxruntime-web 1.30 (js/web/lib/wasm/wasm-types.ts), which
// take the same tensor as past and as present.

import { DeviceError } from "../errors.js";

/**
 * @import { Decoder } from "./model_shape.js"
 * @import { WasmModule } from "./ort_runtime.js"
 * @typedef {{pointer: number, tensor: number}} Held memory, and the tensor over it
 */

const FLOAT = 1, INT64 = 7, ON_CPU = 1; // as ONNX Runtime numbers them
const NEEDED = ["_OrtCreateTensor", "_OrtReleaseTensor", "_OrtRun", "_OrtGetTensorData", "_OrtGetLastError", "_malloc",
  "_free", "stringToUTF8", "lengthBytesUTF8"];

/** DeviceError unless the module has what is called here. @param {WasmModule} module */
export function checkModule(module) {
  const lacking = NEEDED.find((name) => typeof module[name] !== "function");
  if (!lacking) return;
  throw new DeviceError(`this onnxruntime-web has no ${lacking}; expected version 1.30. Use that one.`);
}

/** The KV of one sequence and the steps over it. */
export class HostSteps {
  #module;
  #session;
  #decoder;
  /** @type {Map<string, Held>} by the name of the input */
  #kv = new Map();
  /** @type {number} ones for all there is room for: where the mask of every step begins; made once, not in each */
  #ones = 0;
  /** @type {number} of the names, inputs and outputs in turn */
  #names = 0;
  #capacity = 0;

  /** @param {WasmModule} module @param {number} session its handle @param {Decoder} decoder */
  constructor(module, session, decoder) {
    this.#module = module;
    this.#session = session;
    this.#decoder = decoder;
  }

  get capacity() {
    return this.#capacity;
  }

  /** @param {number} capacity tokens @param {number} held of them, kept */
  async grow(capacity, held) {
    const before = this.#kv;
    const old = this.#capacity;
    /** @type {Map<string, Held>} */
    const grown = new Map();
    let ones = 0;
    try {
      ones = this.#allocate(8 * capacity);
      this.#longs(ones, capacity).fill(1n);
      for (const [layer, { kvHeads, headDim }] of this.#decoder.layers.entries()) {
        for (const part of ["key", "value"]) {
          const name = `${layer}.${part}`;
          const value = this.#place(FLOAT, [1, kvHeads, capacity, headDim], 4 * kvHeads * capacity * headDim);
          grown.set(name, value);
          const source = before.get(name)?.pointer ?? 0;
          this.#bytes(value.pointer, 4 * kvHeads * capacity * headDim).fill(0);
          for (let head = 0; head < kvHeads && held; head++) {
            const length = 4 * held * headDim;
            const from = this.#bytes(source + 4 * head * old * headDim, length);
            this.#bytes(value.pointer + 4 * head * capacity * headDim, length).set(from);
          }
        }
      }
    } catch (error) {
      this.#release(grown.values());
      this.#module._free(ones);
      throw error;
    }
    this.#release(before.values());
    this.#module._free(this.#ones);
    [this.#kv, this.#ones] = [grown, ones];
    this.#capacity = capacity;
  }

  /**
   * @param {ArrayLike<number>} tokens @param {number} position of the first
   * @returns {Promise<Float32Array>} the logits after the last of them; valid until the next step
   */
  async run(tokens, position) {
    const module = this.#module;
    const end = position + tokens.length;
    const ids = this.#place(INT64, [1, tokens.length], 8 * tokens.length);
    this.#longs(ids.pointer, tokens.length).set(Array.from(tokens, BigInt));
    const mask = this.#tensor(INT64, this.#ones, [1, end], 8 * end);
    const stack = module.stackSave();
    const layers = [...this.#kv.values()].map(({ tensor }) => tensor);
    const [inputs, outputs] = [[ids.tensor, mask, ...layers], [0, ...layers]];
    const names = this.#names || (this.#names = this.#writeNames());
    const values = module.stackAlloc(4 * (inputs.length + outputs.length));
    [...inputs, ...outputs].forEach((tensor, place) => module.setValue(values + 4 * place, tensor, "*"));
    const results = values + 4 * inputs.length;
    try {
      const outputNames = names + 4 * inputs.length;
      const code = await module._OrtRun(
        this.#session, names, values, inputs.length, outputNames, outputs.length, results, 0,
      );
      if (code) throw new DeviceError(`ONNX Runtime failed at position ${position}: ${this.#lastError()}`);
      return this.#logits(module.getValue(results, "*"));
    } finally {
      module.stackRestore(stack);
      module._OrtReleaseTensor(mask);
      this.#release([ids]);
    }
  }

  /** Copies of the keys and values of the tokens from `start` to before `stop`, each [kv heads, T, D]. */
  async read(/** @type {number} */ start, /** @type {number} */ stop) {
    return this.#pieces(start, stop).map(([pointer, length]) => this.#bytes(pointer, length).slice());
  }

  /** @param {Uint8Array[]} pieces as read() gave them @param {number} start @param {number} stop */
  async write(pieces, start, stop) {
    this.#pieces(start, stop).forEach(([pointer, length], place) => this.#bytes(pointer, length).set(pieces[place]));
  }

  close() {
    this.#release(this.#kv.values());
    this.#kv.clear();
    this.#module._free(this.#ones);
    this.#ones = this.#capacity = 0;
    if (this.#names) this.#module._free(this.#module.getValue(this.#names, "*")), this.#module._free(this.#names);
    this.#names = 0;
  }

  /** @param {number} start @param {number} stop @returns {[pointer: number, length: number][]} a head of a tensor each */
  #pieces(start, stop) {
    const capacity = this.#capacity;
    return this.#decoder.layers.flatMap(({ kvHeads, headDim }, layer) =>
      ["key", "value"].flatMap((part) => {
        const pointer = /** @type {Held} */ (this.#kv.get(`${layer}.${part}`)).pointer;
        return Array.from({ length: kvHeads }, (_, head) => /** @type {[number, number]} */ (
          [pointer + 4 * (head * capacity + start) * headDim, 4 * (stop - start) * headDim]));
      }),
    );
  }

  /** Memory and a tensor over it. @param {number} type @param {number[]} dims @param {number} bytes @returns {Held} */
  #place(type, dims, bytes) {
    const pointer = this.#allocate(bytes);
    try {
      return { pointer, tensor: this.#tensor(type, pointer, dims, bytes) };
    } catch (error) {
      this.#module._free(pointer);
      throw error;
    }
  }

  /** @param {number} bytes */
  #allocate(bytes) {
    const pointer = this.#module._malloc(bytes);
    if (!pointer) throw new DeviceError(`this page has no memory left for ${bytes} bytes of the KV cache.`);
    return pointer;
  }

  /** A tensor over memory. @param {number} type @param {number} pointer @param {number[]} dims @param {number} bytes */
  #tensor(type, pointer, dims, bytes) {
    const module = this.#module;
    const stack = module.stackSave();
    const sizes = module.stackAlloc(4 * dims.length);
    dims.forEach((size, place) => module.setValue(sizes + 4 * place, size, "i32"));
    const tensor = module._OrtCreateTensor(type, pointer, bytes, sizes, dims.length, ON_CPU);
    module.stackRestore(stack);
    if (!tensor) throw new DeviceError(`ONNX Runtime made no tensor of ${bytes} bytes: ${this.#lastError()}`);
    return tensor;
  }

  /** @param {Iterable<Held>} held */
  #release(held) {
    for (const { pointer, tensor } of held) {
      this.#module._OrtReleaseTensor(tensor);
      this.#module._free(pointer);
    }
  }

  /** A view of the memory, good until it grows. @param {number} pointer @param {number} length */
  #bytes(pointer, length) {
    this.#module.getValue(pointer, "i8"); // renews HEAPU8 when the memory has grown, in another thread perhaps
    return new Uint8Array(this.#module.HEAPU8.buffer, pointer, length);
  }

  /** A view of int64 numbers, likewise. @param {number} pointer @param {number} count */
  #longs(pointer, count) {
    const { buffer } = this.#bytes(pointer, 8 * count);
    return new BigInt64Array(buffer, pointer, count);
  }

  /** Pointers to the names of inputs, then of outputs; the first also points to all their text. */
  #writeNames() {
    const module = this.#module;
    const layers = [...this.#kv.keys()];
    const names = ["input_ids", "attention_mask", ...layers.map((name) => `past_key_values.${name}`),
      "logits", ...layers.map((name) => `present.${name}`)];
    const sizes = names.map((name) => module.lengthBytesUTF8(name) + 1);
    const pointers = module._malloc(4 * names.length);
    let text = module._malloc(sizes.reduce((sum, size) => sum + size, 0));
    names.forEach((name, place) => {
      module.stringToUTF8(name, text, sizes[place]);
      module.setValue(pointers + 4 * place, text, "*");
      text += sizes[place];
    });
    return pointers;
  }

  /** The last row of a tensor [1, T, V], which is released. @param {number} tensor */
  #logits(tensor) {
    const module = this.#module;
    const stack = module.stackSave();
    try {
      const found = module.stackAlloc(16);
      if (module._OrtGetTensorData(tensor, found, found + 4, found + 8, found + 12)) {
        throw new DeviceError(`ONNX Runtime gave no logits: ${this.#lastError()}`);
      }
      const [pointer, sizes] = [module.getValue(found + 4, "*"), module.getValue(found + 8, "*")];
      module._OrtFree(sizes);
      return new Float32Array(this.#bytes(pointer, 4 * this.#decoder.vocabulary).slice().buffer);
    } finally {
      module.stackRestore(stack);
      module._OrtReleaseTensor(tensor);
    }
  }

  #lastError() {
    const module = this.#module;
    const stack = module.stackSave();
    try {
      const found = module.stackAlloc(8);
      module._OrtGetLastError(found, found + 4);
      const text = module.getValue(found + 4, "*");
      return text ? module.UTF8ToString(text) : "no reason given";
    } finally {
      module.stackRestore(stack);
    }
  }
}
