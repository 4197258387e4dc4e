// The sizes of images in Mistral 3 and LightOnOCR: the twin of embedllm/images/pixtral.py.

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
export function pixtralRule(settings, vision, named) {
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
  const found = settings.sides("size", { longest_edge: 1024 });
  const [widest, highest] = [found.longest_edge ?? found.width, found.longest_edge ?? found.height];
  if (!(widest >= 1 && highest >= 1)) {
    throw new PackageError(`'size' is ${JSON.stringify(found)} in the image processor's settings; expected a longest_edge.`);
  }
  const factor = vision.patch_size * vision.merge_size;
  const { image_token: placeholder = "[IMG]", image_break_token: row = "[IMG_BREAK]", image_end_token: end = "[IMG_END]" } = named;
  return { placeholder, row, end, size: (width, height) => {
    const ratio = Math.max(width / widest, height / highest, 1);
    const up = (/** @type {number} */ side) => Math.ceil(Math.max(Math.floor(side / ratio), 1) / factor) * factor;
    return [up(width), up(height)];
  } };
}

/**
 * Rows of features have no tokens between them.
 *
 * @param {Settings} settings @param {any} vision @param {Readonly<Record<string, string>>} named @returns {Rule}
 */
export function lightOnOcrRule(settings, vision, named) {
  const { image_token: placeholder = "<|image_pad|>" } = named;
  return { ...pixtralRule(settings, vision, named), placeholder, row: "", end: "" };
}
