// Idefics 3 and SmolVLM: an image in tiles, row by row, and then all of it in one tile; the twin of
// embedllm/images/processors.py, whose rules of sizes these are.

import { PackageError } from "../errors.js";
import { normalized, squares } from "./pixels.js";
import { resized } from "./resize.js";
import { Settings } from "./settings.js";

/**
 * @import { Narrow } from "./pixels.js"
 * @import { Rgb } from "./resize.js"
 */

const KNOWN = ["Idefics3Processor", "SmolVLMProcessor"];
const MOST_SIDE = 4096; // pixels, after the first resize

export class TilingProcessor {
  #pixels;
  #longest;
  #tile;
  #tileTokens;
  #splits;
  #tokens;

  /**
   * Throws PackageError for another processor, and where it and the vision encoder disagree.
   *
   * @param {Map<string, string>} texts of the folder @param {any} vision of the manifest's architecture
   * @param {Readonly<Record<string, string>>} named special tokens by role
   */
  constructor(texts, vision, named) {
    const settings = new Settings(texts);
    settings.checkProcessor(KNOWN);
    this.#tile = settings.longestEdge("max_image_size", 364);
    this.#longest = settings.longestEdge("size", 4 * 364);
    this.#tileTokens = Math.floor(Math.floor(vision.image_size / vision.patch_size) / vision.pixel_shuffle) ** 2;
    const count = settings.count("image_seq_len", this.#tileTokens);
    if (this.#tile !== vision.image_size || count !== this.#tileTokens || !settings.flag("do_resize", true)) {
      throw new PackageError(
        `the image processor makes tiles of ${this.#tile} pixels and ${count} tokens; the vision encoder has ` +
          `${vision.image_size} and ${this.#tileTokens}. Copy preprocessor_config.json from the same checkpoint again.`,
      );
    }
    this.#splits = settings.flag("do_image_splitting", true);
    this.#pixels = settings.pixels({ resample: 1, mean: 0.5, std: 0.5 });
    this.#tokens = { fake: named.fake_image_token ?? "<fake_token_around_image>", whole: named.global_image_token ?? "<global-img>" };
    /** what the chat template writes for an image */
    this.placeholder = named.image_token ?? "<image>";
  }

  /** What takes its place in the prompt: a token for each row of features. @param {number} width @param {number} height */
  promptText(width, height) {
    const [rows, columns] = this.#grid(width, height);
    const { fake, whole } = this.#tokens;
    const tokens = this.placeholder.repeat(this.#tileTokens);
    const tile = (/** @type {number} */ row, /** @type {number} */ column) => `${fake}<row_${row + 1}_col_${column + 1}>${tokens}`;
    const lines = range(rows).map((row) => `${range(columns).map((column) => tile(row, column)).join("")}\n`);
    return `${lines.join("")}${rows ? "\n" : ""}${fake}${whole}${tokens}${fake}`;
  }

  /** How many rows of features an image of this size has. @param {number} width @param {number} height */
  tokenCount(width, height) {
    const [rows, columns] = this.#grid(width, height);
    return (rows * columns + 1) * this.#tileTokens;
  }

  /** Rows and columns of features: of tiles there is no one grid. @returns {null} */
  grid() {
    return null;
  }

  /** The tiles of an image. @param {Rgb} image @returns {Rgb[]} */
  tiles(image) {
    const [tile, { resample }] = [this.#tile, this.#pixels];
    image = resized(image, ...this.#firstSize(image.width, image.height), resample);
    if (this.#splits) image = resized(image, ...this.#tiledSize(image.width, image.height), resample);
    const whole = resized(image, tile, tile, resample);
    const tiles = this.#splits ? squares(image, tile) : [];
    return tiles.length > 1 ? [...tiles, whole] : [whole];
  }

  /** A tile as the vision encoder takes it, [1, 3, tile, tile]. @param {Rgb} tile @param {Narrow} narrow */
  pixelValues(tile, narrow) {
    return normalized(tile, this.#pixels, narrow);
  }

  /** What else it takes: nothing. */
  besides() {
    return {};
  }

  /** Rows and columns of tiles; 0 and 0 for an image that is one tile. @param {number} width @param {number} height */
  #grid(width, height) {
    const [wide, high] = this.#tiledSize(...this.#firstSize(width, height));
    const [rows, columns] = [high / this.#tile, wide / this.#tile];
    return this.#splits && rows * columns > 1 ? [rows, columns] : [0, 0];
  }

  /** Whose longest side is #longest; the other one is made even. @param {number} width @param {number} height @returns {[number, number]} */
  #firstSize(width, height) {
    const longest = this.#longest;
    let ratio = width / height;
    if (width >= height) [width, height] = [longest, even(Math.trunc(longest / ratio))];
    else [width, height] = [even(Math.trunc(longest * ratio)), longest];
    [width, height] = [Math.max(width, 1), Math.max(height, 1)];
    ratio = width / height;
    if (width >= height && width > MOST_SIDE) [width, height] = [MOST_SIDE, Math.trunc(MOST_SIDE / ratio)];
    else if (height > width && height > MOST_SIDE) [width, height] = [Math.trunc(MOST_SIDE * ratio), MOST_SIDE];
    return [Math.max(width, 1), Math.max(height, 1)];
  }

  /** Whose sides are multiples of a tile's. @param {number} width @param {number} height @returns {[number, number]} */
  #tiledSize(width, height) {
    const [ratio, tile] = [width / height, this.#tile];
    const up = (/** @type {number} */ side) => Math.ceil(side / tile) * tile;
    if (width >= height) return [up(width), Math.max(up(Math.trunc(up(width) / ratio)), tile)];
    return [Math.max(up(Math.trunc(up(height) * ratio)), tile), up(height)];
  }
}

/** @param {number} side */
const even = (side) => side + (side % 2);

/** @param {number} count */
const range = (count) => Array.from({ length: count }, (_, place) => place);
