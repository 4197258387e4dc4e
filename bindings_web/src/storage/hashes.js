// The sha256 of a file that grows piece by piece: of the piece that is written now, and of all so far.

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

  /** The piece ends: its hash. */
  ofPiece() {
    this.#last = hex(this.#piece.digest());
    return this.#last;
  }

  /** All ends: its hash. */
  ofAll() {
    return this.#all ? hex(this.#all.digest()) : this.#last;
  }
}

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
