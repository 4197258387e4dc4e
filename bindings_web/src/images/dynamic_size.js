// Images of any size: each keeps its own, but for sides of whole squares of patches, by the rule of a model's family.

import { gridInputs } from "./image_grid.js";
import { normalized } from "./pixels.js";
import { resized } from "./resize.js";
import { CLIP_MEAN, CLIP_STD } from "./settings.js";

/**
 * @import { Narrow } from "./pixels.js"
 * @import { Rgb } from "./resize.js"
 * @import { Settings } from "./settings.js"
 * @typedef {[width: number, height: number]} Size
 * @typedef {{placeholder: string, start?: string, row: string, end: string, pixels?: ReturnType<Settings["pixels"]>,
 *   size: (width: number, height: number) => Size}} Rule
 *   placeholder: what the chat template writes for an image; start: before the features; row: between lines of them; end:
 *   behind the last; pixels: where they are not as settings say; size: in pixels, sides of whole squares
 */

const MOST_SCORE_BYTES = 1 << 30; // of attention, which has them of all heads at once; a wasm memory has 4 GB

export class DynamicSizeProcessor {
  #vision;
  #pixels;
  #rule;

  /** @param {Settings} settings @param {any} vision of the manifest's architecture @param {Rule} rule */
  constructor(settings, vision, rule) {
    this.#pixels = rule.pixels ?? settings.pixels({ resample: 3, mean: CLIP_MEAN, std: CLIP_STD });
    this.#vision = vision;
    this.#rule = rule;
    this.placeholder = rule.placeholder;
  }

  /** What takes its place in the prompt: a token for each row of features. @param {number} width @param {number} height */
  promptText(width, height) {
    const [rows, columns] = this.grid(width, height);
    const { start = "", row, end } = this.#rule;
    return start + new Array(rows).fill(this.placeholder.repeat(columns)).join(row) + end;
  }

  /** @param {number} width @param {number} height */
  tokenCount(width, height) {
    const [rows, columns] = this.grid(width, height);
    return rows * columns;
  }

  /**
   * Rows and columns of features. Throws RangeError for an image that is too narrow, or too large for a page.
   *
   * @param {number} width @param {number} height @returns {[rows: number, columns: number]}
   */
  grid(width, height) {
    const square = this.#vision.patch_size * this.#vision.merge_size;
    const [wide, high] = this.#rule.size(width, height).map((side) => side / square);
    checkAttention(this.#vision, { width, height }, wide * high);
    return [high, wide];
  }

  /** The image, in a size that the encoder takes. @param {Rgb} image @returns {Rgb[]} */
  tiles(image) {
    return [resized(image, ...this.#rule.size(image.width, image.height), this.#pixels.resample)];
  }

  /** An image of tiles() as the vision encoder takes it, [1, 3, height, width]. @param {Rgb} tile @param {Narrow} narrow */
  pixelValues(tile, narrow) {
    return normalized(tile, this.#pixels, narrow);
  }

  /** What else it takes. @param {Rgb} tile */
  besides({ width, height }) {
    return gridInputs(this.#vision, width, height);
  }
}

/**
 * Throws RangeError where the attention of an image's patches is too large for a page.
 *
 * @param {any} vision of the manifest's architecture @param {{width: number, height: number}} image @param {number} tokens of it
 */
export function checkAttention({ patch_size: patch, merge_size: merge, layers }, { width, height }, tokens) {
  const heads = layers.find((/** @type {any} */ { attention }) => attention.heads)?.attention.heads ?? 0;
  const most = Math.sqrt(MOST_SCORE_BYTES / 4 / heads); // patches; without layers any number
  if (tokens * merge ** 2 <= most) return;
  const pixels = Math.floor(most / merge ** 2) * (patch * merge) ** 2;
  throw new RangeError(
    `the image has ${width} x ${height} pixels, ${tokens} tokens, whose attention does not fit a page's memory; about ` +
      `${pixels} pixels do. Scale it down.`,
  );
}

/** The nearest whole number, halves to the even one, as Python's round(). @param {number} value */
export function toEven(value) {
  const floor = Math.floor(value);
  if (value - floor !== 0.5) return Math.round(value);
  return floor % 2 ? floor + 1 : floor;
}
