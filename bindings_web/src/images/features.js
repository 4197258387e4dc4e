// Images in prompts: ids that stand for their features, and the features, each computed once.
//
// A prompt has, in the place of each placeholder token of an image, an id that no vocabulary has: it says of which image,
// by the hash of that, and which row. So whatever compares prompts tells images apart: as embedllm/backends/images.py.

import { FLOAT, FLOAT16, INT64, ROPE_TABLES } from "../engine/ort_calls.js";
import { ImageIsGone, Interrupted } from "../errors.js";

/**
 * @import { Held, OrtCalls } from "../engine/ort_calls.js"
 * @import { ImagePlaces, Tables } from "./places.js"
 * @import { WholeImages } from "./whole_images.js"
 * @import { Rgb } from "./resize.js"
 * @typedef {Float32Array<ArrayBuffer> | Uint16Array<ArrayBuffer>} Values float32, or the bits of float16
 * @typedef {[rows: number, columns: number] | null} Grid of an image's features; null: they have no one grid
 * @typedef {{first: number, tokens: number, grid: Grid, tiles: () => Promise<Rgb[]>}} Prepared an image of a prompt; first:
 *   its first id
 * @typedef {{encode: (tile: Rgb) => Promise<{rows: Values, hidden: number}>, close: () => void}} Encoder rows: of a
 *   tile, [rows, hidden]
 * @typedef {{tokens: number, grid: Grid, tiles: Rgb[], rows: Values, hidden: number, done: number}} Features tiles: those
 *   that are not encoded yet; done: rows that are computed
 */

export const FIRST_ID = 2 ** 52; // of those that stand for images; what is beyond 2 ** 53 is no whole number
export const MAX_TOKENS = 2 ** 16; // of one image
const IS_GONE = "the image of a part of this prompt is no longer there; give the prompt with its images.";
const KEY_DIGITS = 9; // hexadecimal, of its hash
const CACHE_BYTES = 128 << 20; // of features that are kept for later prompts

/** The id of the first row of an image. Throws RangeError for one of too many. @param {string} hash @param {number} tokens */
export function firstId(hash, tokens) {
  if (tokens > MAX_TOKENS) throw new RangeError(`an image has ${tokens} tokens; expected ${MAX_TOKENS} at most. Scale it down.`);
  return FIRST_ID + parseInt(hash.slice(0, KEY_DIGITS), 16) * MAX_TOKENS;
}

/** The id of the first row of the image that an id is of. @param {number} id */
export const firstOf = (id) => id - (id % MAX_TOKENS);

/** What a run takes of images: the tokens with 0 in their places, and the rows for these. */
export class WithImages {
  #first;

  /**
   * @param {number} first place in its sequence of the first of @param {number[]} tokens
   * @param {number[]} places of images among them @param {Values | null} features [places, hidden]; null: all are text
   * @param {Tables | null} tables rotary ones, where images have moved positions
   * @param {number} [session] handle of that of the run, where it is not that of text
   */
  constructor(first, tokens, places, features, tables, session = 0) {
    this.#first = first;
    this.session = session;
    this.tokens = tokens;
    this.places = places;
    this.features = features;
    this.tables = tables;
  }

  /** The inputs, by their names. @param {OrtCalls} calls @returns {Map<string, Held>} */
  inputs(calls) {
    const found = this.tables ? tableInputs(this.tables, this.#first, this.tokens.length, calls) : new Map();
    const { features, places } = this;
    if (!features) return found;
    const [type, count] = [features instanceof Uint16Array ? FLOAT16 : FLOAT, places.length];
    const rows = calls.place(type, [count, features.length / count], features.byteLength);
    calls.bytes(rows.pointer, features.byteLength).set(new Uint8Array(features.buffer));
    const positions = calls.place(INT64, [count, 2], 16 * count);
    calls.longs(positions.pointer, 2 * count).set(places.flatMap((place) => [0n, BigInt(place)]));
    return found.set("image_features", rows).set("image_positions", positions);
  }
}

/**
 * Rotary tables of a sequence, of which a run reads the rows of its own tokens only: the others are left as they are.
 *
 * @param {Tables} tables @param {number} first @param {number} count tokens of the run @param {OrtCalls} calls
 * @returns {Map<string, Held>}
 */
function tableInputs(tables, first, count, calls) {
  const [end, { pairs }, rows] = [first + count, tables, tables.rows(first, count)];
  return new Map(ROPE_TABLES.map((name, part) => {
    const held = calls.place(FLOAT, [end, pairs], 4 * end * pairs);
    calls.bytes(held.pointer + 4 * first * pairs, rows[part].byteLength).set(new Uint8Array(rows[part].buffer));
    return [name, held];
  }));
}

export class ImageFeatures {
  #openEncoder;
  #places;
  #whole;
  /** @type {Promise<Encoder> | null} */
  #encoder = null;
  /** @type {Map<number, Prepared>} by the first id, of the prompt that runs */
  #images = new Map();
  /** @type {Map<number, Features>} by the first id, the least recently used first */
  #features = new Map();

  /**
   * @param {() => Promise<Encoder>} openEncoder called by open() @param {ImagePlaces | null} places null: as those of text
   * @param {WholeImages | null} whole null: no token attends to what is behind it
   */
  constructor(openEncoder, places, whole) {
    this.#openEncoder = openEncoder;
    this.#places = places;
    this.#whole = whole;
  }

  /** The encoder; what it lacks is told before anything is fed, since a feed that fails ends the engine. */
  async open() {
    await this.#whole?.open();
    this.#encoder ??= this.#openEncoder();
    this.#encoder.catch(() => (this.#encoder = null)); // so that the next image tries again
    return this.#encoder;
  }

  /** Lets these be fed, and no others that are not encoded yet. @param {Prepared[]} images */
  set(images) {
    this.#images = new Map(images.map((image) => [image.first, image]));
  }

  /** Where a sequence that shall hold the first tokens of a prompt may end, at `at` or before. @param {readonly number[]} tokens @param {number} at */
  startOfRun(tokens, at) {
    return this.#whole?.startOfRun(tokens, at) ?? at;
  }

  /** Where a run of tokens from `at` on ends. @param {readonly number[]} tokens @param {number} at @param {number} chunk most of text */
  endOfRun(tokens, at, chunk) {
    return this.#whole?.endOfRun(tokens, at, chunk) ?? at + chunk;
  }

  /** Whether an id stands for a row of an image that is there. @param {number} id */
  has(id) {
    return this.#features.has(firstOf(id)) || this.#images.has(firstOf(id));
  }

  /**
   * What a graph takes for tokens with ids of images among them, or behind some that have moved positions; null: all is
   * as in text.
   *
   * Rejects with Interrupted once isStopped says so: it is asked before each tile, which may take a second.
   *
   * @param {number[]} tokens @param {() => readonly number[]} before what the sequence has in front of them
   * @param {() => boolean} isStopped
   */
  async take(tokens, before, isStopped) {
    const gridOf = (/** @type {number} */ first) => this.#gridOf(first);
    const held = this.#places ? before() : [];
    const [first, tables] = [held.length, this.#places?.tables(held.concat(tokens), gridOf) ?? null];
    const places = tokens.flatMap((token, place) => (token >= FIRST_ID ? [place] : []));
    if (!places.length) return tables && new WithImages(first, tokens, [], null, tables);
    /** @type {Values | null} */
    let features = null;
    for (const [at, place] of places.entries()) {
      const image = firstOf(tokens[place]);
      const row = tokens[place] - image;
      const { rows, hidden } = await this.#encoded(image, row + 1, isStopped);
      features ??= rows instanceof Uint16Array ? new Uint16Array(places.length * hidden) : new Float32Array(places.length * hidden);
      features.set(rows.subarray(row * hidden, (row + 1) * hidden), at * hidden);
    }
    const ids = tokens.map((token) => (token >= FIRST_ID ? 0 : token));
    return new WithImages(first, ids, places, features, tables, await this.#whole?.open());
  }

  /** Frees the encoder and all features. */
  close() {
    this.#features.clear();
    this.#whole?.close();
    void this.#encoder?.then((encoder) => encoder.close(), () => {});
    this.#encoder = null;
  }

  /**
   * The features of an image, of whose rows `count` at least are there.
   *
   * @param {number} first @param {number} count @param {() => boolean} isStopped
   */
  async #encoded(first, count, isStopped) {
    const kept = this.#features.get(first) ?? (await this.#begun(first));
    this.#features.delete(first);
    this.#features.set(first, kept);
    while (kept.done < count) {
      if (isStopped()) throw new Interrupted();
      await this.#encodeNext(kept);
    }
    return kept;
  }

  /** @param {number} first id of an image @returns {[rows: number, columns: number]} */
  #gridOf(first) {
    const grid = (this.#images.get(first) ?? this.#features.get(first))?.grid;
    if (!grid) throw new ImageIsGone(IS_GONE);
    return grid;
  }

  /** @param {number} first @returns {Promise<Features>} */
  async #begun(first) {
    const image = this.#images.get(first);
    if (!image) throw new ImageIsGone(IS_GONE);
    return { tokens: image.tokens, grid: image.grid, tiles: [...(await image.tiles())], rows: new Float32Array(0), hidden: 0, done: 0 };
  }

  /** @param {Features} kept */
  async #encodeNext(kept) {
    const { rows, hidden } = await (await this.open()).encode(kept.tiles[0]);
    if (!kept.done) {
      const length = kept.tokens * hidden;
      [kept.hidden, kept.rows] = [hidden, rows instanceof Uint16Array ? new Uint16Array(length) : new Float32Array(length)];
    }
    kept.rows.set(rows, kept.done * hidden);
    kept.done += rows.length / hidden;
    kept.tiles.shift();
    if (!kept.tiles.length) this.#makeRoom();
  }

  #makeRoom() {
    const bytes = () => [...this.#features.values()].reduce((sum, { rows }) => sum + rows.byteLength, 0);
    while (this.#features.size > 1 && bytes() > CACHE_BYTES) {
      this.#features.delete(/** @type {number} */ (this.#features.keys().next().value));
    }
  }
}
