// Qwen's models: an image keeps its size, but for sides of whole squares of patches; the twin of
// embedllm/images/dynamic_size.py, whose rules of sizes these are.

import { PackageError } from "../errors.js";
import { gridInputs } from "./image_grid.js";
import { normalized } from "./pixels.js";
import { resized } from "./resize.js";
import { CLIP_MEAN, CLIP_STD } from "./settings.js";

/**
 * @import { Narrow } from "./pixels.js"
 * @import { Rgb } from "./resize.js"
 * @import { Settings } from "./settings.js"
 */

const MOST_RATIO = 200; // of the longer side to the shorter one
const MOST_SCORE_BYTES = 1 << 30; // of attention, which has them of all heads at once; a wasm memory has 4 GB

export class DynamicSizeProcessor {
  #vision;
  #pixels;
  #factor;
  #smallest;
  #largest;

  /**
   * Throws PackageError where the settings and the vision encoder disagree.
   *
   * @param {Settings} settings @param {any} vision of the manifest's architecture
   * @param {Readonly<Record<string, string>>} named special tokens by role
   */
  constructor(settings, vision, named) {
    for (const name of ["patch_size", "merge_size", "temporal_patch_size"]) {
      const found = settings.count(name, vision[name]);
      if (found === vision[name] && settings.flag("do_resize", true)) continue;
      throw new PackageError(
        `'${name}' is ${found} in the image processor's settings, and ${vision[name]} in the vision encoder. Copy ` +
          "preprocessor_config.json from the same checkpoint again.",
      );
    }
    const size = settings.pixelCounts("size");
    this.#smallest = settings.count("min_pixels", size.shortest_edge ?? 56 * 56);
    this.#largest = settings.count("max_pixels", size.longest_edge ?? 28 * 28 * 1280);
    if (this.#smallest > this.#largest) {
      throw new PackageError(
        `the image processor asks for ${this.#smallest} pixels at least and ${this.#largest} at most; copy ` +
          "preprocessor_config.json from the checkpoint again.",
      );
    }
    this.#pixels = settings.pixels({ resample: 3, mean: CLIP_MEAN, std: CLIP_STD });
    this.#vision = vision;
    this.#factor = vision.patch_size * vision.merge_size;
    /** what the chat template writes for an image */
    this.placeholder = named.image_token ?? "<|image_pad|>";
  }

  /** What takes its place in the prompt: a token for each row of features. @param {number} width @param {number} height */
  promptText(width, height) {
    return this.placeholder.repeat(this.tokenCount(width, height));
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
    const [wide, high] = this.#size(width, height).map((side) => side / this.#factor);
    checkAttention(this.#vision, { width, height }, wide * high);
    return [high, wide];
  }

  /** The image, in a size that the encoder takes. @param {Rgb} image @returns {Rgb[]} */
  tiles(image) {
    return [resized(image, ...this.#size(image.width, image.height), this.#pixels.resample)];
  }

  /** An image of tiles() as the vision encoder takes it, [1, 3, height, width]. @param {Rgb} tile @param {Narrow} narrow */
  pixelValues(tile, narrow) {
    return normalized(tile, this.#pixels, narrow);
  }

  /** What else it takes. @param {Rgb} tile */
  besides({ width, height }) {
    return gridInputs(this.#vision, width, height);
  }

  /** @param {number} width @param {number} height @returns {[width: number, height: number]} */
  #size(width, height) {
    if (Math.max(width, height) > MOST_RATIO * Math.min(width, height)) {
      throw new RangeError(
        `an image has ${width} x ${height} pixels; the model takes those whose longer side is at most ${MOST_RATIO} times ` +
          "the shorter one. Crop it.",
      );
    }
    const factor = this.#factor;
    const [area, sides] = [width * height, [width, height]];
    let found = sides.map((side) => toEven(side / factor) * factor);
    if (found[0] * found[1] > this.#largest) {
      const scale = Math.sqrt(area / this.#largest);
      found = sides.map((side) => Math.max(factor, Math.floor(side / scale / factor) * factor));
    } else if (found[0] * found[1] < this.#smallest) {
      const scale = Math.sqrt(this.#smallest / area);
      found = sides.map((side) => Math.ceil((side * scale) / factor) * factor);
    }
    return [found[0], found[1]];
  }
}

/**
 * Throws RangeError where the attention of an image's patches is too large for a page.
 *
 * @param {any} vision of the manifest's architecture @param {{width: number, height: number}} image @param {number} tokens of it
 */
export function checkAttention({ patch_size: patch, merge_size: merge, layers: [{ attention }] }, { width, height }, tokens) {
  const most = Math.sqrt(MOST_SCORE_BYTES / 4 / attention.heads); // patches
  if (tokens * merge ** 2 <= most) return;
  const pixels = Math.floor(most / merge ** 2) * (patch * merge) ** 2;
  throw new RangeError(
    `the image has ${width} x ${height} pixels, ${tokens} tokens, whose attention does not fit a page's memory; about ` +
      `${pixels} pixels do. Scale it down.`,
  );
}

/** The nearest whole number, halves to the even one, as Python's round(). @param {number} value */
function toEven(value) {
  const floor = Math.floor(value);
  if (value - floor !== 0.5) return Math.round(value);
  return floor % 2 ? floor + 1 : floor;
}
