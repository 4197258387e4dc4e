// What encoders of images of any size are given beside pixels: the order of patches, positions and windows, all by the size
// of the image; the twin of embedllm/backends/image_grid.py.

import { neighbours } from "./resize.js";

const BILINEAR = 2; // of Pillow's numbers

/** @typedef {{places: number[], weights: number[]}} Tap of each patch, along one axis */
/** @typedef {{type: "int64" | "int32" | "float32", data: BigInt64Array | Int32Array | Float32Array, dims: number[]}} Input */

/**
 * The inputs by their names.
 *
 * @param {any} vision of the manifest's architecture @param {number} width @param {number} height of the image, in pixels
 * @returns {Record<string, Input>}
 */
export function gridInputs(vision, width, height) {
  const [merge, square] = [vision.merge_size, vision.merge_size ** 2];
  const [rows, columns] = [height / vision.patch_size, width / vision.patch_size];
  const wide = columns / merge;
  const order = Array.from({ length: rows * columns }, (_, place) => {
    const [at, inside] = [Math.floor(place / square), place % square];
    const row = Math.floor(at / wide) * merge + Math.floor(inside / merge);
    return row * columns + (at % wide) * merge + (inside % merge);
  });
  const places = { row: order.map((place) => Math.floor(place / columns)), column: order.map((place) => place % columns) };
  const inputs = { patch_order: longs(order), ...(vision.rope_base ? rotations(vision, places) : {}) };
  if (vision.positions_by_axis) Object.assign(inputs, byAxis(vision.positions.rows / 2, places));
  else if (vision.positions) {
    const side = Math.round(Math.sqrt(vision.positions.rows));
    const taps = vision.antialias ? antialiased : vision.positions_on_edges ? onEdges : corners;
    Object.assign(inputs, mixed(side, taps(side, places.row, rows), taps(side, places.column, columns)));
  }
  if (vision.window) Object.assign(inputs, windows(vision.window, square, rows / merge, wide));
  return inputs;
}

/**
 * 2-D RoPE: half of the pairs by the row, half by the column; the other way round with `rope_column_first`.
 *
 * @param {any} vision @param {{row: number[], column: number[]}} places @returns {Record<string, Input>}
 */
function rotations({ layers, rope_base: base, rope_interleaved: alternates, rope_column_first: isSwapped }, places) {
  const [row, column] = isSwapped ? [places.column, places.row] : [places.row, places.column];
  const half = layers.find((/** @type {any} */ { attention }) => attention.head_dim).attention.head_dim / 2; // pairs
  const [byRow, byColumn] = [0, alternates ? 1 : 0].map((shift) =>
    Array.from({ length: half / 2 }, (_, pair) =>
      Math.fround(1 / Math.fround(Math.pow(base, Math.fround((2 * pair + shift) / half))))));
  const [cos, sin] = [new Float32Array(row.length * half), new Float32Array(row.length * half)];
  let at = 0;
  const put = (/** @type {number} */ angle) => {
    [cos[at], sin[at]] = [Math.cos(angle), Math.sin(angle)];
    at++;
  };
  for (let place = 0; place < row.length; place++) {
    for (const frequency of byRow) put(Math.fround(row[place] * frequency));
    for (const frequency of byColumn) put(Math.fround(column[place] * frequency));
  }
  const dims = [row.length, half];
  return { rope_cos: { type: "float32", data: cos, dims }, rope_sin: { type: "float32", data: sin, dims } };
}

/**
 * The learned positions of the column and of the row of each patch, and their weights, which are 1.
 *
 * @param {number} side most patches along a side @param {{row: number[], column: number[]}} places @returns {Record<string, Input>}
 */
function byAxis(side, { row, column }) {
  const count = row.length;
  return {
    position_rows: longs([...column, ...row.map((place) => side + place)], [2, count]),
    position_weights: { type: "float32", data: new Float32Array(2 * count).fill(1), dims: [2, count, 1] },
  };
}

/**
 * The learned positions around each patch, and their weights.
 *
 * @param {number} side of their grid @param {Tap[]} rows @param {Tap[]} columns that the position of a patch is mixed of
 * @returns {Record<string, Input>}
 */
function mixed(side, rows, columns) {
  const both = rows.flatMap((row) => columns.map((column) => ({ row, column })));
  const places = both.flatMap(({ row, column }) => row.places.map((place, patch) => place * side + column.places[patch]));
  const weights = both.flatMap(({ row, column }) => row.weights.map((weight, patch) => weight * column.weights[patch]));
  const dims = [both.length, places.length / both.length];
  return {
    position_rows: longs(places, dims),
    position_weights: { type: "float32", data: Float32Array.from(weights), dims: [...dims, 1] },
  };
}

/** Of grids that lie corner on corner. @param {number} side @param {number[]} at of patches @param {number} count @returns {Tap[]} */
function corners(side, at, count) {
  return between(side, at.map((place) => Math.fround(Math.fround(place * (side - 1)) / Math.max(count - 1, 1))));
}

/** Of grids that lie edge on edge. @param {number} side @param {number[]} at of patches @param {number} count @returns {Tap[]} */
function onEdges(side, at, count) {
  return between(side, at.map((place) => Math.fround(Math.min(Math.max(((place + 0.5) * side) / count - 0.5, 0), side - 1))));
}

/** Of the places on both sides of exact ones. @param {number} side @param {number[]} exact @returns {Tap[]} */
function between(side, exact) {
  const first = exact.map(Math.floor);
  const share = exact.map((place, patch) => Math.fround(place - first[patch]));
  return [
    { places: first, weights: share.map((one) => Math.fround(1 - one)) },
    { places: first.map((place) => Math.min(place + 1, side - 1)), weights: share },
  ];
}

/** Of grids that lie edge on edge, resized as an image is. @param {number} side @param {number[]} at of patches @param {number} count @returns {Tap[]} */
function antialiased(side, at, count) {
  const found = Array.from({ length: count }, (_, place) => neighbours(side, count, place, BILINEAR));
  const most = Math.max(...found.map(({ weights }) => weights.length));
  return Array.from({ length: most }, (_, tap) => ({
    places: at.map((place) => Math.min(found[place].first + tap, side - 1)),
    weights: at.map((place) => Math.fround(found[place].weights[tap] ?? 0)),
  }));
}

/**
 * Windows of `side` squares of `square` patches each.
 *
 * @param {number} side @param {number} square @param {number} rows @param {number} columns of squares
 * @returns {Record<string, Input>}
 */
function windows(side, square, rows, columns) {
  /** @type {number[][]} */
  const parts = [];
  for (let top = 0; top < rows; top += side) {
    for (let left = 0; left < columns; left += side) {
      /** @type {number[]} */
      const part = [];
      for (let row = top; row < Math.min(top + side, rows); row++) {
        for (let column = left; column < Math.min(left + side, columns); column++) {
          for (let patch = 0; patch < square; patch++) part.push((row * columns + column) * square + patch);
        }
      }
      parts.push(part);
    }
  }
  const longest = Math.max(...parts.map(({ length }) => length));
  const patches = new Array(parts.length * longest).fill(0);
  const mask = new Int32Array(parts.length * longest);
  const places = new Array(rows * columns * square).fill(0);
  for (const [number, part] of parts.entries()) {
    for (const [place, patch] of part.entries()) {
      const at = number * longest + place;
      [patches[at], mask[at], places[patch]] = [patch, 1, at];
    }
  }
  const dims = [parts.length, longest];
  return {
    window_patches: longs(patches, dims),
    window_mask: { type: "int32", data: mask, dims },
    window_places: longs(places),
  };
}

/** @param {number[]} values @param {number[]} [dims] @returns {Input} */
const longs = (values, dims = [values.length]) => ({ type: "int64", data: BigInt64Array.from(values, BigInt), dims });
