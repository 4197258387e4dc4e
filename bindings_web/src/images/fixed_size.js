// Gemma 3: each image is one square, whatever its sides; the twin of FixedSizeProcessor in embedllm/images/processors.py.
// Loaded with the first image of such a model, as is what runs of its images take.

import { PackageError } from "../errors.js";
import { normalized } from "./pixels.js";
import { resized } from "./resize.js";
import { Settings } from "./settings.js";

/**
 * @import { Narrow } from "./pixels.js"
 * @import { Rgb } from "./resize.js"
 */

export { WholeImages } from "./whole_images.js";

export class FixedSizeProcessor {
  #pixels;
  #tile;
  #tokens;

  /**
   * Throws PackageError for another processor, and where it and the vision encoder disagree.
   *
   * @param {Map<string, string>} texts of the folder @param {any} vision of the manifest's architecture
   * @param {Readonly<Record<string, string>>} named special tokens by role
   */
  constructor(texts, vision, named) {
    const settings = new Settings(texts);
    settings.checkProcessor(["Gemma3Processor"]);
    const own = Math.floor(Math.floor(vision.image_size / vision.patch_size) / vision.pixel_shuffle / vision.pooling) ** 2;
    const [size, count] = [settings.sides("size", { height: 224, width: 224 }), settings.count("image_seq_length", own)];
    const isSame = size.height === vision.image_size && size.width === size.height && count === own;
    if (!isSame || !settings.flag("do_resize", true)) {
      throw new PackageError(
        `the image processor makes ${count} tokens of ${JSON.stringify(size)}; the vision encoder has ${own} of ` +
          `${vision.image_size} pixels a side. Copy preprocessor_config.json and processor_config.json from the same checkpoint again.`,
      );
    }
    if (settings.flag("do_pan_and_scan", false)) {
      throw new PackageError("the image processor asks for pan and scan, which is not supported; set do_pan_and_scan false.");
    }
    this.#pixels = settings.pixels({ resample: 2, mean: 0.5, std: 0.5 });
    this.#tile = size.height;
    const { image_token: image = "<image_soft_token>", eoi_token: end = "<end_of_image>" } = named;
    this.#tokens = { count, text: `${image.repeat(count)}${end}` };
    /** what the chat template writes for an image */
    this.placeholder = named.boi_token ?? "<start_of_image>";
  }

  /** What takes its place in the prompt: a token for each row of features, between its start and its end. */
  promptText() {
    return `\n\n${this.placeholder}${this.#tokens.text}\n\n`;
  }

  tokenCount() {
    return this.#tokens.count;
  }

  /** Of squares there is no grid that positions follow. @returns {null} */
  grid() {
    return null;
  }

  /** The image, in the size that the encoder takes. @param {Rgb} image @returns {Rgb[]} */
  tiles(image) {
    return [resized(image, this.#tile, this.#tile, this.#pixels.resample)];
  }

  /** An image of tiles() as the vision encoder takes it, [1, 3, tile, tile]. @param {Rgb} tile @param {Narrow} narrow */
  pixelValues(tile, narrow) {
    return normalized(tile, this.#pixels, narrow);
  }

  /** What else it takes: nothing. */
  besides() {
    return {};
  }
}
