// The sizes of images in Gemma 4: the twin of embedllm/images/aspect_ratio.py.

import { PackageError } from "../errors.js";

/**
 * @import { Rule } from "./dynamic_size.js"
 * @import { Settings } from "./settings.js"
 */

/**
 * Throws PackageError where the settings and the vision encoder disagree.
 *
 * @param {Settings} settings @param {any} vision of the manifest's architecture
 * @param {Readonly<Record<string, string>>} named special tokens by role @returns {Rule}
 */
export function gemma4Rule(settings, vision, named) {
  const { patch_size: patch, merge_size: merge } = vision;
  const isUnified = settings.processor === "Gemma4UnifiedProcessor"; // its model reads squares of patches as they are
  const [found, squares, most] = [settings.count("patch_size", isUnified ? 16 : patch),
    settings.count("pooling_kernel_size", isUnified ? 3 : merge), settings.count("max_soft_tokens", 280)];
  const fits = isUnified ? found * squares === patch : found === patch && squares === merge;
  if (!fits || most * merge > vision.positions.rows / 2 || !settings.flag("do_resize", true)) {
    throw new PackageError(
      `the image processor has patches of ${found} pixels in squares of ${squares}, ${most} of them at most; the vision ` +
        `encoder has ${patch} and ${merge}, and positions for ${Math.floor(vision.positions.rows / 2 / merge)} in a row. Copy ` +
        "preprocessor_config.json and processor_config.json from the same checkpoint again.",
    );
  }
  const { image_token: placeholder = "<|image|>", boi_token: start = "<|image>", eoi_token: end = "<image|>" } = named;
  const usual = { resample: 3, mean: 0, std: 1 };
  const { resample, mean, std } = settings.pixels(usual, false);
  const halves = std.map((one) => one / 2); // the model makes -1 to 1 of values from 0 to 1: one step with the settings'
  const centred = { resample, mean: mean.map((one, channel) => one + halves[channel]), std: halves };
  const factor = patch * merge;
  return { placeholder, start, row: "", end, pixels: isUnified ? { resample, mean, std } : centred, size: (width, height) => {
    const scale = Math.sqrt((most * factor ** 2) / (width * height));
    const [columns, rows] = [width, height].map((side) => Math.floor((scale * side) / factor));
    if (!rows) return [Math.min(Math.floor(width / height), most) * factor, factor];
    if (!columns) return [factor, Math.min(Math.floor(height / width), most) * factor];
    return [columns * factor, rows * factor];
  } };
}
