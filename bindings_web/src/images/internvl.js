// InternVL: an image in tiles whose grid is nearest to its proportions, and then all of it in one; the twin of
// embedllm/images/internvl.py. Loaded with the first image of such a model.

import { PackageError } from "../errors.js";
import { normalized, squares } from "./pixels.js";
import { resized } from "./resize.js";
import { CLIP_MEAN, CLIP_STD, Settings } from "./settings.js";
import { MOST_TILES, closestGrid } from "./tile_grid.js";

/**
 * @import { Narrow } from "./pixels.js"
 * @import { Rgb } from "./resize.js"
 */

export class InternVLProcessor {
  #pixels;
  #tile;
  #tileTokens;
  #limits;
  #marks;

  /**
   * Throws PackageError for another processor, and where it and the vision encoder disagree.
   *
   * @param {Map<string, string>} texts of the folder @param {any} vision of the manifest's architecture
   * @param {Readonly<Record<string, string>>} named special tokens by role
   */
  constructor(texts, vision, named) {
    const settings = new Settings(texts);
    settings.checkProcessor(["InternVLProcessor", "GotOcr2Processor"]);
    this.#tile = vision.image_size;
    this.#tileTokens = Math.floor(Math.floor(vision.image_size / vision.patch_size) / vision.pixel_shuffle) ** 2;
    const { height, width } = settings.sides("size", { height: 384, width: 384 });
    const count = settings.count("image_seq_length", this.#tileTokens);
    const isSame = height === this.#tile && width === height && count === this.#tileTokens;
    if (!isSame || !settings.flag("do_resize", true)) {
      throw new PackageError(
        `the image processor makes tiles of ${width} x ${height} pixels and ${count} tokens; the vision encoder has ` +
          `${this.#tile} and ${this.#tileTokens}. Copy preprocessor_config.json from the same checkpoint again.`,
      );
    }
    this.#limits = [settings.count("min_patches", 1), settings.count("max_patches", 12)];
    const [least, most] = this.#limits;
    if (least > most || most > MOST_TILES) {
      throw new PackageError(`the image processor asks for ${least} to ${most} tiles; expected 1 to ${MOST_TILES}.`);
    }
    this.#pixels = settings.pixels({ resample: 3, mean: CLIP_MEAN, std: CLIP_STD });
    this.#marks = { start: named.start_image_token ?? "<img>", end: named.end_image_token ?? "</img>" };
    /** what the chat template writes for an image */
    this.placeholder = named.context_image_token ?? "<IMG_CONTEXT>";
  }

  /** What takes its place in the prompt: a token for each row of features. @param {number} width @param {number} height */
  promptText(width, height) {
    return `${this.#marks.start}${this.placeholder.repeat(this.tokenCount(width, height))}${this.#marks.end}`;
  }

  /** How many rows of features an image of this size has. @param {number} width @param {number} height */
  tokenCount(width, height) {
    const [rows, columns] = this.#grid({ width, height });
    return this.#tileTokens * (rows * columns > 1 ? rows * columns + 1 : 1);
  }

  /** Rows and columns of features: of tiles there is no one grid. @returns {null} */
  grid() {
    return null;
  }

  /** The tiles of an image, and then all of it. @param {Rgb} image @returns {Rgb[]} */
  tiles(image) {
    const [[rows, columns], side, { resample }] = [this.#grid(image), this.#tile, this.#pixels];
    const tiles = squares(resized(image, columns * side, rows * side, resample), side);
    return tiles.length > 1 ? [...tiles, resized(image, side, side, resample)] : tiles;
  }

  /** A tile as the vision encoder takes it, [1, 3, tile, tile]. @param {Rgb} tile @param {Narrow} narrow */
  pixelValues(tile, narrow) {
    return normalized(tile, this.#pixels, narrow);
  }

  /** What else it takes: nothing. */
  besides() {
    return {};
  }

  /** Rows and columns of tiles. @param {{width: number, height: number}} image */
  #grid(image) {
    return this.#limits[1] === 1 ? [1, 1] : closestGrid(image, this.#tile, this.#limits);
  }
}
