// Pixtral: an image keeps its size up to a limit, but for sides of whole squares of patches; the twin of
// embedllm/images/pixtral.py, whose rules of sizes these are.

import { PackageError } from "../errors.js";
import { checkAttention } from "./dynamic_size.js";
import { gridInputs } from "./image_grid.js";
import { normalized } from "./pixels.js";
import { resized } from "./resize.js";
import { CLIP_MEAN, CLIP_STD } from "./settings.js";

/**
 * @import { Narrow } from "./pixels.js"
 * @import { Rgb } from "./resize.js"
 * @import { Settings } from "./settings.js"
 */

export class PixtralProcessor {
  #vision;
  #pixels;
  #factor;
  /** @type {[width: number, height: number]} */
  #largest;
  #ends;

  /**
   * Throws PackageError where the settings and the vision encoder disagree.
   *
   * @param {Settings} settings @param {any} vision of the manifest's architecture
   * @param {Readonly<Record<string, string>>} named special tokens by role
   */
  constructor(settings, vision, named) {
    const merge = settings.count("spatial_merge_size", vision.merge_size);
    const patch = settings.sides("patch_size", { height: vision.patch_size, width: vision.patch_size });
    const isSame = Object.values(patch).every((side) => side === vision.patch_size) && merge === vision.merge_size;
    if (!isSame || !settings.flag("do_resize", true)) {
      throw new PackageError(
        `the image processor has patches of ${JSON.stringify(patch)} in squares of ${merge}; the vision encoder has ` +
          `${vision.patch_size} and ${vision.merge_size}. Copy preprocessor_config.json and processor_config.json from ` +
          "the same checkpoint again.",
      );
    }
    const size = settings.sides("size", { longest_edge: 1024 });
    this.#largest = [size.longest_edge ?? size.width, size.longest_edge ?? size.height];
    if (!this.#largest.every((side) => side >= 1)) {
      throw new PackageError(`'size' is ${JSON.stringify(size)} in the image processor's settings; expected a longest_edge.`);
    }
    this.#pixels = settings.pixels({ resample: 3, mean: CLIP_MEAN, std: CLIP_STD });
    this.#vision = vision;
    this.#factor = vision.patch_size * vision.merge_size;
    /** what the chat template writes for an image */
    this.placeholder = named.image_token ?? "[IMG]";
    this.#ends = { row: named.image_break_token ?? "[IMG_BREAK]", image: named.image_end_token ?? "[IMG_END]" };
  }

  /** What takes its place in the prompt: a token for each row of features, and one behind each line of them. @param {number} width @param {number} height */
  promptText(width, height) {
    const [rows, columns] = this.grid(width, height);
    return new Array(rows).fill(this.placeholder.repeat(columns)).join(this.#ends.row) + this.#ends.image;
  }

  /** @param {number} width @param {number} height */
  tokenCount(width, height) {
    const [rows, columns] = this.grid(width, height);
    return rows * columns;
  }

  /**
   * Rows and columns of features. Throws RangeError for an image that is too large for a page.
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
    const ratio = Math.max(width / this.#largest[0], height / this.#largest[1], 1);
    const up = (/** @type {number} */ side) => Math.ceil(Math.max(Math.floor(side / ratio), 1) / this.#factor) * this.#factor;
    return [up(width), up(height)];
  }
}
