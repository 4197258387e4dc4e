// What images of any size take, beside what those in tiles do: loaded with the first image of a model that reads such.

import { DynamicSizeProcessor } from "./dynamic_size.js";
import { gemma4Rule } from "./gemma4.js";
import { lightOnOcrRule, pixtralRule } from "./pixtral.js";
import { glmRule, paddleOcrRule, qwenRule } from "./qwen_vl.js";
import { Settings } from "./settings.js";

export { ImagePlaces } from "./places.js";
export { WholeImages } from "./whole_images.js";

/** By the name of the processor in transformers. */
const RULES = {
  Gemma4Processor: gemma4Rule,
  Gemma4UnifiedProcessor: gemma4Rule,
  Glm46VProcessor: glmRule,
  Lfm3VlProcessor: qwenRule,
  LightOnOcrProcessor: lightOnOcrRule,
  PaddleOCRVLProcessor: paddleOcrRule,
  PixtralProcessor: pixtralRule,
  Qwen2VLProcessor: qwenRule,
  Qwen2_5_VLProcessor: qwenRule,
  Qwen3VLProcessor: qwenRule,
};

const TILED = "Lfm2VlProcessor";

/**
 * The image processor of a folder. Rejects with PackageError for another one, and where it and the vision encoder disagree.
 *
 * @param {Map<string, string>} texts of the folder @param {any} vision of the manifest's architecture
 * @param {Readonly<Record<string, string>>} named special tokens by role
 */
export async function openProcessor(texts, vision, named) {
  const settings = new Settings(texts);
  settings.checkProcessor([...Object.keys(RULES), TILED]);
  if (settings.processor === TILED) return new (await import("./lfm2_vl.js")).Lfm2VlProcessor(settings, vision, named);
  const rule = RULES[/** @type {keyof typeof RULES} */ (settings.processor)](settings, vision, named);
  return new DynamicSizeProcessor(settings, vision, rule);
}
