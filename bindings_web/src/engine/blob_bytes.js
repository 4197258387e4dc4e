// Bytes that ONNX Runtime reads piece by piece from a file on disk, so that no copy of the whole file is in memory.

/**
 * What stands for an array of bytes in the option `externalData`.
 *
 * onnxruntime-web 1.30 asks an external file for nothing but its byteLength and, for each tensor, subarray(start, end),
 * whose result it copies into its memory or to the GPU.
 */
export class BlobBytes extends Uint8Array {
  #blob;

  /** @param {Blob} blob */
  constructor(blob) {
    super(0);
    this.#blob = blob;
  }

  /** @override @returns {number} */
  get byteLength() {
    return this.#blob.size;
  }

  /** @override @param {number} [start] @param {number} [end] @returns {Uint8Array<ArrayBuffer>} */
  subarray(start = 0, end = this.#blob.size) {
    return readBlob(this.#blob, start, end);
  }
}

/**
 * A piece of a file, at once; only workers can.
 *
 * @param {Blob} blob @param {number} start @param {number} end
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function readBlob(blob, start, end) {
  const buffer = new FileReaderSync().readAsArrayBuffer(blob.slice(start, end));
  if (buffer.byteLength !== end - start) {
    throw new RangeError(`a file of ${blob.size} bytes was read from ${start} to ${end}`);
  }
  return new Uint8Array(buffer);
}
