// M-RoPE: where the tokens of a prompt with images stand, and the rows of the rotary tables for them; the twin of
// embedllm/backends/mrope.py, which says by what rule.

import { readBlob } from "../engine/blob_bytes.js";
import { readHeader } from "../engine/float_bytes.js";
import { ROPE_TABLES } from "../engine/ort_calls.js";
import { FIRST_ID, firstOf } from "./features.js";

/**
 * @typedef {{sections: number[], interleaved?: boolean}} Mrope
 * @typedef {{start: number, position: number, rows: number, columns: number}} Span an image; start: place of its first
 *   token; position: of its first row and column
 * @typedef {{layout: string, pairs: number, rows: (first: number, count: number) => Float32Array<ArrayBuffer>[]}} Tables
 *   of a sequence; layout: the images that moved its positions; rows: cos and sin of `count` tokens from `first` on
 */

export class ImagePlaces {
  #tables;
  #axes;

  /** @param {Blob} weights weights.safetensors @param {{rotary_dim: number, mrope: Mrope}} rope of the architecture */
  constructor(weights, { rotary_dim, mrope }) {
    const entries = readHeader(weights);
    /** [context, pairs] each, as other graphs have them as constants */
    this.#tables = ROPE_TABLES.map((name) => {
      const { start, end } = /** @type {import("../engine/float_bytes.js").Entry} */ (entries.get(name));
      return new Float32Array(readBlob(weights, start, end).buffer);
    });
    this.#axes = axesOf(mrope, rotary_dim / 2);
  }

  /**
   * The rotary tables of these tokens and of what follows; null where no image has moved positions.
   *
   * @param {readonly number[]} tokens of a sequence, from its first one on
   * @param {(first: number) => [rows: number, columns: number]} gridOf an image, by its first id
   * @returns {Tables | null}
   */
  tables(tokens, gridOf) {
    const spans = spansOf(tokens, gridOf);
    if (!spans.length) return null;
    const rows = (/** @type {number} */ first, /** @type {number} */ count) => this.#rows(spans, first, count);
    return { layout: JSON.stringify(spans), pairs: this.#axes.length, rows };
  }

  /** @param {Span[]} spans @param {number} first @param {number} count */
  #rows(spans, first, count) {
    const pairs = this.#axes.length;
    const positions = Array.from({ length: count }, (_, at) => positionOf(spans, first + at));
    return this.#tables.map((table) => {
      const made = new Float32Array(count * pairs);
      for (let at = 0, place = 0; at < count; at++) {
        for (let pair = 0; pair < pairs; pair++) made[place++] = table[positions[at][this.#axes[pair]] * pairs + pair];
      }
      return made;
    });
  }
}

/** @param {readonly number[]} tokens @param {(first: number) => [number, number]} gridOf @returns {Span[]} */
function spansOf(tokens, gridOf) {
  /** @type {Span[]} */
  const spans = [];
  for (let at = 0; at < tokens.length; at++) {
    if (tokens[at] < FIRST_ID) continue;
    const [rows, columns] = gridOf(firstOf(tokens[at]));
    spans.push({ start: at, position: behind(spans.at(-1), at), rows, columns });
    at += rows * columns - 1;
  }
  return spans;
}

/** The position of a token of text behind an image. @param {Span | undefined} span @param {number} place */
const behind = (span, place) =>
  span ? span.position + Math.max(span.rows, span.columns) + place - span.start - span.rows * span.columns : place;

/** Time, row and column of a token. @param {Span[]} spans @param {number} place */
function positionOf(spans, place) {
  const span = spans.filter(({ start }) => start <= place).at(-1);
  const inside = span ? place - span.start : 0;
  if (!span || inside >= span.rows * span.columns) {
    const position = behind(span, place);
    return [position, position, position];
  }
  const { position, columns } = span;
  return [position, position + Math.floor(inside / columns), position + (inside % columns)];
}

/** Which of time, row and column rotates each pair of dimensions. @param {Mrope} mrope @param {number} pairs */
function axesOf({ sections, interleaved }, pairs) {
  if (!interleaved) return sections.flatMap((count, axis) => Array(count).fill(axis));
  const axes = Array(pairs).fill(0);
  for (const axis of [1, 2]) {
    for (let pair = axis; pair < Math.min(3 * sections[axis], pairs); pair += 3) axes[pair] = axis;
  }
  return axes;
}
