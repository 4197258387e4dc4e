// ONNX Runtime's C functions, for what its JavaScript interface does not offer: tensors at fixed places, bound once.
//
// Those of onnxruntime-web 1.30: js/web/lib/wasm/wasm-types.ts.

import { DeviceError } from "../errors.js";

/**
 * @import { WasmModule } from "./ort_runtime.js"
 * @typedef {{pointer: number, tensor: number}} Held memory, and the tensor over it
 */

export const FLOAT = 1, INT32 = 6, INT64 = 7, FLOAT16 = 10; // as ONNX numbers types of elements
export const ON_CPU = 1, ON_GPU = 4;
export const ROPE_TABLES = ["rope.cos", "rope.sin"]; // inputs of graphs whose images move positions
const NEEDED = ["_OrtCreateTensor", "_OrtReleaseTensor", "_OrtRun", "_OrtGetTensorData", "_OrtGetLastError", "_malloc",
  "_free", "stringToUTF8", "lengthBytesUTF8"];

/** The functions over one session's memory. */
export class OrtCalls {
  /** DeviceError unless the module has what is called. @param {WasmModule} module @param {string[]} [besides] */
  constructor(module, besides = []) {
    const lacking = [...NEEDED, ...besides].find((name) => typeof module[name] !== "function");
    if (lacking) throw new DeviceError(`this onnxruntime-web has no ${lacking}; expected version 1.30. Use that one.`);
    this.module = module;
  }

  /** Memory and a tensor over it. @param {number} type @param {number[]} dims @param {number} bytes @returns {Held} */
  place(type, dims, bytes) {
    const pointer = this.allocate(bytes);
    try {
      return { pointer, tensor: this.tensor(type, pointer, dims, bytes) };
    } catch (error) {
      this.module._free(pointer);
      throw error;
    }
  }

  /** @param {number} bytes */
  allocate(bytes) {
    const pointer = this.module._malloc(bytes);
    if (!pointer) throw new DeviceError(`this page has no memory left for ${bytes} bytes.`);
    return pointer;
  }

  /**
   * A tensor over memory, or over a GPU's buffer.
   *
   * @param {number} type @param {number} pointer @param {number[]} dims @param {number} bytes
   * @param {number} [location]
   */
  tensor(type, pointer, dims, bytes, location = ON_CPU) {
    const { module } = this;
    const stack = module.stackSave();
    const sizes = module.stackAlloc(4 * dims.length);
    dims.forEach((size, place) => module.setValue(sizes + 4 * place, size, "i32"));
    const tensor = module._OrtCreateTensor(type, pointer, bytes, sizes, dims.length, location);
    module.stackRestore(stack);
    if (!tensor) throw new DeviceError(`ONNX Runtime made no tensor of ${bytes} bytes: ${this.lastError()}`);
    return tensor;
  }

  /** @param {Iterable<Held>} held */
  release(held) {
    for (const { pointer, tensor } of held) {
      this.module._OrtReleaseTensor(tensor);
      this.module._free(pointer);
    }
  }

  /** A view of the memory, good until it grows. @param {number} pointer @param {number} length */
  bytes(pointer, length) {
    this.module.getValue(pointer, "i8"); // renews HEAPU8 when the memory has grown, in another thread perhaps
    return new Uint8Array(this.module.HEAPU8.buffer, pointer, length);
  }

  /** A view of int64 numbers, likewise. @param {number} pointer @param {number} count */
  longs(pointer, count) {
    const { buffer } = this.bytes(pointer, 8 * count);
    return new BigInt64Array(buffer, pointer, count);
  }

  /** Pointers to these names, one after the other; the first also points to all their text. @param {string[]} names */
  names(names) {
    const { module } = this;
    const sizes = names.map((name) => module.lengthBytesUTF8(name) + 1);
    const pointers = this.allocate(4 * names.length);
    let text = this.allocate(sizes.reduce((sum, size) => sum + size, 0));
    names.forEach((name, place) => {
      module.stringToUTF8(name, text, sizes[place]);
      module.setValue(pointers + 4 * place, text, "*");
      text += sizes[place];
    });
    return pointers;
  }

  /** @param {number} pointers as names() gave them */
  freeNames(pointers) {
    this.module._free(this.module.getValue(pointers, "*"));
    this.module._free(pointers);
  }

  /** DeviceError unless a function succeeded. @param {number} code that it gave @param {string} what failed */
  check(code, what) {
    if (code) throw new DeviceError(`ONNX Runtime ${what}: ${this.lastError()}`);
  }

  lastError() {
    const { module } = this;
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
