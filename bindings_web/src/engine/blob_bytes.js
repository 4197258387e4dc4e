// Bytes that ONNX Runtime reads piece by piece from a file on disk, so that no copy of the whole file is in memory.

import { openForReading } from "../storage/opfs.js";

/** Files that are open while a session is made. @type {Map<Blob, import("../storage/opfs.js").OpenFile>} */
const opened = new Map();

/**
 * What work gives, which reads a file sooner than it would else.
 *
 * @template T @param {Blob} blob @param {() => Promise<T>} work @returns {Promise<T>}
 */
export async function whileOpen(blob, work) {
  const access = opened.has(blob) ? null : await openForReading(blob);
  if (!access) return work();
  opened.set(blob, access);
  try {
    return await work();
  } finally {
    opened.delete(blob);
    access.close();
  }
}

/**
 * What stands for an array of bytes in the option `externalData`.
 *
 * onnxruntime-web 1.30 asks an external file for nothing but its byteLength and, for each tensor, subarray(start, end),
 * whose result it copies into its memory or to the GPU.
 */
export class BlobBytes extends Uint8Array {
  #blob;
  /** what pieces are read into, one after the other: memory that is new each time takes longer than reading */
  #room = new Uint8Array(0);

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
    return readBlob(this.#blob, start, end, (length) => {
      if (this.#room.length < length) this.#room = new Uint8Array(length);
      return this.#room.subarray(0, length);
    });
  }
}

/**
 * A piece of a file, at once; only workers can.
 *
 * @param {Blob} blob @param {number} start @param {number} end
 * @param {(length: number) => Uint8Array<ArrayBuffer>} [room] what an open file is read into
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function readBlob(blob, start, end, room = (length) => new Uint8Array(length)) {
  const access = opened.get(blob);
  const bytes = access
    ? room(end - start)
    : new Uint8Array(new FileReaderSync().readAsArrayBuffer(blob.slice(start, end)));
  const found = access ? access.read(bytes, { at: start }) : bytes.length;
  if (found !== end - start) throw new RangeError(`a file of ${blob.size} bytes was read from ${start} to ${end}`);
  return bytes;
}
