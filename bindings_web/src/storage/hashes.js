// The sha256 of a file that grows piece by piece: of the piece that is written now, and of all so far. Or of its blocks.

import { digest, hex } from "./stored_name.js";

/**
 * @typedef {{update: (data: Uint8Array) => unknown, digest: () => Uint8Array, clone: () => Hash}} Hash
 * @typedef {{create: () => Hash}} Sha256
 */

/** Both hashes in one pass; one where the only piece is the whole. */
export class Hashes {
  #sha256;
  /** @type {Hash | null} */ #all;
  /** @type {Hash | null} */ #before = null; // that of all, where the piece began
  /** @type {Hash} */ #piece;
  #last = ""; // of the last piece that ended

  /**
   * @param {Sha256} sha256
   * @param {number} pieces
   */
  constructor(sha256, pieces) {
    this.#sha256 = sha256;
    this.#all = pieces > 1 ? sha256.create() : null;
    this.#piece = sha256.create();
  }

  /** The next piece begins. */
  next() {
    this.#before = this.#all?.clone() ?? null;
    this.#piece = this.#sha256.create();
  }

  /** The piece begins once more. */
  again() {
    this.#all = this.#before?.clone() ?? null;
    this.#piece = this.#sha256.create();
  }

  /** @param {Uint8Array} bytes */
  update(bytes) {
    this.#piece.update(bytes);
    this.#all?.update(bytes);
  }

  /** The piece ends: what is wrong with it, empty when nothing is. @param {string} sha256 what it should be */
  async fault(sha256) {
    this.#last = hex(this.#piece.digest());
    return this.#last === sha256 ? "" : `its sha256 is ${this.#last}, the manifest says ${sha256}`;
  }

  /** All ends: its hash. */
  ofAll() {
    return this.#all ? hex(this.#all.digest()) : this.#last;
  }
}

/** The hashes of a file's blocks. */
export class BlockHashes {
  #blocks;
  #block;
  #filled = 0; // bytes of the block that comes
  /** @type {Promise<boolean>[]} whether each block before is right */
  #right = [];

  /** @param {import("../package/manifest.js").Blocks} blocks */
  constructor(blocks) {
    this.#blocks = blocks;
    this.#block = new Uint8Array(blocks.bytes);
  }

  /** The file begins, which is the one piece. */
  next() {
    this.again();
  }

  /** The file begins once more. */
  again() {
    this.#filled = 0;
    this.#right = [];
  }

  /** @param {Uint8Array} bytes */
  update(bytes) {
    for (let at = 0; at < bytes.length; ) {
      const taken = bytes.subarray(at, at + this.#blocks.bytes - this.#filled);
      this.#block.set(taken, this.#filled);
      this.#filled += taken.length;
      at += taken.length;
      if (this.#filled === this.#blocks.bytes) this.#end();
    }
    // those before, so that no more than a few are in memory
    return this.#right.at(-MOST_AT_ONCE);
  }

  /** The file ends: what is wrong with it, empty when nothing is. */
  async fault() {
    if (this.#filled) this.#end();
    const { sha256, root } = this.#blocks;
    const list = Uint8Array.from(sha256.join("").match(/../g) ?? [], (digits) => parseInt(digits, 16));
    if ((await digest(list)) !== root) return "the hashes of its blocks have not the root that the manifest says";
    const at = (await Promise.all(this.#right)).indexOf(false);
    return at < 0 && this.#right.length === sha256.length ? "" : `its block ${at} has not the sha256 that the manifest says`;
  }

  #end() {
    const expected = this.#blocks.sha256[this.#right.length];
    this.#right.push(digest(this.#block.subarray(0, this.#filled)).then((found) => found === expected));
    this.#filled = 0;
  }
}

const MOST_AT_ONCE = 4; // blocks that are hashed
const BLOCK = 1 << 22; // read at once to continue a hash

/**
 * Continues the hashes by what is stored of a piece.
 * @param {{name: string, start: number, bytes: number}} piece
 * @param {Pick<import("./opfs.js").Growing, "size" | "read">} stored
 * @param {Hashes | BlockHashes} hashes
 * @param {import("./download.js").Options} options
 */
export async function hashStored({ name, start, bytes }, stored, hashes, { onProgress, signal }) {
  const total = stored.size();
  const end = Math.min(total, start + bytes);
  for (let at = start; at < end; ) {
    signal?.throwIfAborted();
    const block = await stored.read(at, Math.min(BLOCK, end - at));
    await hashes.update(block);
    at += block.length;
    onProgress({ file: name, loaded: at, total, phase: "check" });
    await new Promise((done) => setTimeout(done)); // so that a message that aborts comes through
  }
}
