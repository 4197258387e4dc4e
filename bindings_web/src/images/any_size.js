// What images of any size take, beside what those in tiles do: loaded with the first image of a model that reads such.

import { DynamicSizeProcessor } from "./dynamic_size.js";
import { PixtralProcessor } from "./pixtral.js";
import { Settings } from "./settings.js";

export { ImagePlaces } from "./places.js";

/** By the name in transformers. */
const PROCESSORS = {
  PixtralProcessor,
  Qwen2VLProcessor: DynamicSizeProcessor,
  Qwen2_5_VLProcessor: DynamicSizeProcessor,
  Qwen3VLProcessor: DynamicSizeProcessor,
};

/**
 * The image processor of a folder. Throws PackageError for another one, and where it and the vision encoder disagree.
 *
 * @param {Map<string, string>} texts of the folder @param {any} vision of the manifest's architecture
 * @param {Readonly<Record<string, string>>} named special tokens by role
 */
export function openProcessor(texts, vision, named) {
  const settings = new Settings(texts);
  settings.checkProcessor(Object.keys(PROCESSORS));
  return new PROCESSORS[/** @type {keyof typeof PROCESSORS} */ (settings.processor)](settings, vision, named);
}
