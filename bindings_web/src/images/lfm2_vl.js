// LFM2-VL: an image keeps its proportions within a number of tokens, larger ones become tiles; the twin of
// embedllm/images/lfm2_vl.py. Loaded with the first image of such a model.

import { PackageError } from "../errors.js";
import { checkAttention, toEven } from "./dynamic_size.js";
import { gridInputs } from "./image_grid.js";
import { normalized, squares } from "./pixels.js";
import { resized } from "./resize.js";
import { MOST_TILES, closestGrid } from "./tile_grid.js";

/**
 * @import { Size } from "./dynamic_size.js"
 * @import { Narrow } from "./pixels.js"
 * @import { Rgb } from "./resize.js"
 * @import { Settings } from "./settings.js"
 */

export class Lfm2VlProcessor {
  #vision;
  #pixels;
  #factor;
  #tile;
  #tiles;
  #tokens;
  #largest;
  #hasThumbnail;
  #marks;

  /**
   * Throws PackageError where the settings and the vision encoder disagree.
   *
   * @param {Settings} settings @param {any} vision of the manifest's architecture
   * @param {Readonly<Record<string, string>>} named special tokens by role
   */
  constructor(settings, vision, named) {
    const { patch_size: patch, merge_size: merge } = vision;
    this.#vision = vision;
    this.#factor = patch * merge; // pixels
    this.#tile = settings.count("tile_size", 512);
    const splits = settings.flag("do_image_splitting", true);
    this.#tiles = splits ? [settings.count("min_tiles", 2), settings.count("max_tiles", 10)] : [1, 1];
    this.#tokens = [settings.count("min_image_tokens", 64), settings.count("max_image_tokens", 256)];
    const [own, squareOf] = [settings.count("encoder_patch_size", patch), settings.count("downsample_factor", merge)];
    const isSame = own === patch && squareOf === merge && this.#tile % this.#factor === 0;
    if (!isSame || [this.#tiles, this.#tokens].some(([least, most]) => least > most)) {
      throw new PackageError(
        `the image processor has patches of ${own} pixels in squares of ${squareOf}, tiles of ${this.#tile} pixels, ` +
          `${this.#tiles.join(" to ")} of them, and ${this.#tokens.join(" to ")} tokens; the vision encoder has patches of ` +
          `${patch} in squares of ${merge}. Copy preprocessor_config.json from the same checkpoint again.`,
      );
    }
    if (this.#tiles[1] > MOST_TILES) throw new PackageError(`'max_tiles' is ${this.#tiles[1]}; expected ${MOST_TILES} at most.`);
    this.#pixels = settings.pixels({ resample: 2, mean: 0.5, std: 0.5 });
    this.#largest = this.#tokens[1] * this.#factor ** 2 * settings.number("max_pixels_tolerance", 2); // pixels of one that is not split
    this.#hasThumbnail = settings.flag("use_thumbnail", true);
    const { image_start_token: start = "<|image_start|>", image_end_token: end = "<|image_end|>" } = named;
    const whole = named.image_thumbnail_token ?? "<|img_thumbnail|>";
    this.#marks = settings.flag("use_image_special_tokens", true) ? { start, end, whole } : null;
    /** what the chat template writes for an image */
    this.placeholder = named.image_token ?? "<image>";
  }

  /** What takes its place in the prompt: a token for each row of features. @param {number} width @param {number} height */
  promptText(width, height) {
    const [[rows, columns], marks] = [this.#grid(width, height), this.#marks];
    const tokens = this.#counts(width, height).map((count) => this.placeholder.repeat(count));
    if (!marks) return tokens.join("");
    const text = tokens.map((each, place) => {
      const mark = `<|img_row_${Math.floor(place / columns) + 1}_col_${(place % columns) + 1}|>`;
      return (tokens.length === 1 ? "" : place < rows * columns ? mark : marks.whole) + each;
    });
    return `${marks.start}${text.join("")}${marks.end}`;
  }

  /** How many rows of features an image of this size has. @param {number} width @param {number} height */
  tokenCount(width, height) {
    return this.#counts(width, height).reduce((sum, count) => sum + count, 0);
  }

  /** Rows and columns of features: of tiles there is no one grid. @returns {null} */
  grid() {
    return null;
  }

  /** The tiles of an image, and then all of it. @param {Rgb} image @returns {Rgb[]} */
  tiles(image) {
    const { width, height } = image;
    const [[rows, columns], { resample }, side] = [this.#grid(width, height), this.#pixels, this.#tile];
    const [wide, high] = this.#squares(width, height);
    const whole = () => resized(image, wide * this.#factor, high * this.#factor, resample);
    if (rows * columns === 1) return [whole()];
    const tiles = squares(resized(image, columns * side, rows * side, resample), side);
    return this.#hasThumbnail ? [...tiles, whole()] : tiles;
  }

  /** An image of tiles() as the vision encoder takes it, [1, 3, height, width]. @param {Rgb} tile @param {Narrow} narrow */
  pixelValues(tile, narrow) {
    return normalized(tile, this.#pixels, narrow);
  }

  /** What else it takes. @param {Rgb} tile */
  besides({ width, height }) {
    return gridInputs(this.#vision, width, height);
  }

  /**
   * Tokens of each of tiles(). Throws RangeError where their attention is too large for a page.
   *
   * @param {number} width @param {number} height
   */
  #counts(width, height) {
    const [rows, columns] = this.#grid(width, height);
    const [wide, high] = this.#squares(width, height);
    const counts = rows * columns === 1 ? [] : new Array(rows * columns).fill((this.#tile / this.#factor) ** 2);
    if (!counts.length || this.#hasThumbnail) counts.push(wide * high);
    checkAttention(this.#vision, { width, height }, Math.max(...counts));
    return counts;
  }

  /** Of an image as one, across and down: a token each. @param {number} width @param {number} height @returns {Size} */
  #squares(width, height) {
    const [factor, [least, most]] = [this.#factor, this.#tokens];
    const [wide, high] = [this.#rounded(width), this.#rounded(height)];
    if (wide * high > most) {
      const scale = Math.sqrt((width * height) / (most * factor ** 2));
      return [Math.max(1, Math.floor(width / scale / factor)), Math.max(1, Math.floor(height / scale / factor))];
    }
    if (wide * high >= least) return [wide, high];
    const scale = Math.sqrt((least * factor ** 2) / (width * height));
    return [Math.ceil((width * scale) / factor), Math.ceil((height * scale) / factor)];
  }

  /** Rows and columns of tiles. @param {number} width @param {number} height */
  #grid(width, height) {
    const isWhole = this.#tiles[1] === 1 || this.#rounded(width) * this.#rounded(height) * this.#factor ** 2 <= this.#largest;
    return isWhole ? [1, 1] : closestGrid({ width, height }, this.#tile, this.#tiles);
  }

  /** The nearest number of squares. @param {number} side pixels */
  #rounded(side) {
    return Math.max(1, toEven(side / this.#factor));
  }
}
