// Steps on the CPU: the KV stays in ONNX Runtime's own memory and is written in place.
//
// Through its JavaScript interface every step would copy the whole KV into that memory and out again, 100 MB at 2,000
// tokens of a small model. So this calls the C functions (ort_calls.js), which take a tensor as past and as present.

import { FLOAT, INT64 } from "./ort_calls.js";

/**
 * @import { Decoder } from "./model_shape.js"
 * @import { WithImages } from "../images/features.js"
 * @import { Draws } from "./next_token.js"
 * @import { Held, OrtCalls } from "./ort_calls.js"
 * @import { HostStates } from "./wasm_states.js"
 */

/** The KV of one sequence, its states if it has some, and the steps over them. */
export class HostSteps {
  #calls;
  #module;
  #session;
  #decoder;
  #states;
  /** @type {Map<string, Held>} by the name of the input */
  #kv = new Map();
  /** @type {number} ones for all there is room for: where the mask of every step begins; made once, not in each */
  #ones = 0;
  /** @type {number} of the names, inputs and outputs in turn */
  #names = 0;
  #capacity = 0;

  /**
   * @param {OrtCalls} calls @param {number} session its handle @param {Decoder} decoder
   * @param {HostStates} [states] of a recurrent model
   */
  constructor(calls, session, decoder, states) {
    this.#calls = calls;
    this.#module = calls.module;
    this.#session = session;
    this.#decoder = decoder;
    this.#states = states;
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
      ones = this.#calls.allocate(8 * capacity);
      this.#calls.longs(ones, capacity).fill(1n);
      for (const [layer, { kvHeads, headDim }] of this.#decoder.layers.entries()) {
        for (const part of ["key", "value"]) {
          const name = `${layer}.${part}`;
          const value = this.#calls.place(FLOAT, [1, kvHeads, capacity, headDim], 4 * kvHeads * capacity * headDim);
          grown.set(name, value);
          const source = before.get(name)?.pointer ?? 0;
          this.#calls.bytes(value.pointer, 4 * kvHeads * capacity * headDim).fill(0);
          for (let head = 0; head < kvHeads && held; head++) {
            const length = 4 * held * headDim;
            const from = this.#calls.bytes(source + 4 * head * old * headDim, length);
            this.#calls.bytes(value.pointer + 4 * head * capacity * headDim, length).set(from);
          }
        }
      }
    } catch (error) {
      this.#calls.release(grown.values());
      this.#module._free(ones);
      throw error;
    }
    this.#calls.release(before.values());
    this.#module._free(this.#ones);
    [this.#kv, this.#ones] = [grown, ones];
    this.#capacity = capacity;
  }

  /** From which token on a sequence of that many is fed, to go on. @param {number} position */
  start(position) {
    return this.#states?.goBack(position) ?? position;
  }

  /**
   * @param {ArrayLike<number>} tokens @param {number} position of the first @param {Draws | null} [_]
   * @param {WithImages | null} [images] among the tokens
   * @returns {Promise<Float32Array>} the logits after the last of them; valid until the next step
   */
  async run(tokens, position, _, images) {
    const module = this.#module;
    const session = images?.session || this.#session;
    const end = position + tokens.length;
    this.#states?.begin(tokens.length);
    const ids = this.#calls.place(INT64, [1, tokens.length], 8 * tokens.length);
    this.#calls.longs(ids.pointer, tokens.length).set(Array.from(tokens, BigInt));
    const mask = this.#calls.tensor(INT64, this.#ones, [1, end], 8 * end);
    const stack = module.stackSave();
    const { past: read, present: written } = this.#states?.at() ?? { past: [], present: [] };
    const [past, present] = [read, written].map((states) => [...this.#kv.values(), ...states].map(({ tensor }) => tensor));
    const seen = images?.inputs(this.#calls);
    const [inputs, outputs] = [[ids.tensor, mask, ...past], [0, ...present]];
    for (const { tensor } of seen?.values() ?? []) inputs.push(tensor);
    const names = seen ? this.#calls.names(this.#allNames([...seen.keys()])) : (this.#names ||= this.#calls.names(this.#allNames()));
    const values = module.stackAlloc(4 * (inputs.length + outputs.length));
    [...inputs, ...outputs].forEach((tensor, place) => module.setValue(values + 4 * place, tensor, "*"));
    const results = values + 4 * inputs.length;
    try {
      const outputNames = names + 4 * inputs.length;
      const code = await module._OrtRun(
        session, names, values, inputs.length, outputNames, outputs.length, results, 0,
      );
      this.#calls.check(code, `failed at position ${position}`);
      this.#states?.end(tokens.length);
      return this.#logits(module.getValue(results, "*"));
    } finally {
      module.stackRestore(stack);
      module._OrtReleaseTensor(mask);
      this.#calls.release([ids, ...(seen?.values() ?? [])]);
      if (seen) this.#calls.freeNames(names);
    }
  }

  /** Copies of the keys and values of the tokens from `start` to before `stop`, each [T, D] of a head; then of the states. */
  async read(/** @type {number} */ start, /** @type {number} */ stop) {
    return this.#pieces(start, stop).map(([pointer, length]) => this.#calls.bytes(pointer, length).slice());
  }

  /** @param {Uint8Array[]} pieces as read() gave them @param {number} start @param {number} stop */
  async write(pieces, start, stop) {
    this.#states?.replaced(stop);
    this.#pieces(start, stop).forEach(([pointer, length], place) => {
      this.#calls.bytes(pointer, length).set(pieces[place]);
    });
  }

  close() {
    this.#calls.release(this.#kv.values());
    this.#kv.clear();
    this.#states?.close();
    this.#module._free(this.#ones);
    this.#ones = this.#capacity = 0;
    if (this.#names) this.#calls.freeNames(this.#names);
    this.#names = 0;
  }

  /** @param {number} start @param {number} stop @returns {[pointer: number, length: number][]} a head of a tensor each, states */
  #pieces(start, stop) {
    const capacity = this.#capacity;
    const kv = this.#decoder.layers.flatMap(({ kvHeads, headDim }, layer) =>
      ["key", "value"].flatMap((part) => {
        const pointer = /** @type {Held} */ (this.#kv.get(`${layer}.${part}`)).pointer;
        return Array.from({ length: kvHeads }, (_, head) => /** @type {[number, number]} */ (
          [pointer + 4 * (head * capacity + start) * headDim, 4 * (stop - start) * headDim]));
      }),
    );
    for (const { pointer, length } of this.#states?.past ?? []) kv.push([pointer, length]);
    return kv;
  }

  /** Of inputs, then of outputs. @param {string[]} [more] inputs */
  #allNames(more = []) {
    const [layers, states] = [[...this.#kv.keys()], this.#states?.names ?? []];
    return ["input_ids", "attention_mask", ...layers.map((name) => `past_key_values.${name}`),
      ...states.map((name) => `past_${name}`), ...more,
      "logits", ...layers.map((name) => `present.${name}`), ...states.map((name) => `present_${name}`)];
  }

  /** The last row of a tensor [1, T, V], which is released. @param {number} tensor */
  #logits(tensor) {
    const module = this.#module;
    const stack = module.stackSave();
    try {
      const found = module.stackAlloc(16);
      const code = module._OrtGetTensorData(tensor, found, found + 4, found + 8, found + 12);
      this.#calls.check(code, "gave no logits");
      const [pointer, sizes] = [module.getValue(found + 4, "*"), module.getValue(found + 8, "*")];
      module._OrtFree(sizes);
      return new Float32Array(this.#calls.bytes(pointer, 4 * this.#decoder.vocabulary).slice().buffer);
    } finally {
      module.stackRestore(stack);
      module._OrtReleaseTensor(tensor);
    }
  }
}
