// The sizes of images in Qwen's models: the twin of embedllm/images/dynamic_size.py.

import { PackageError } from "../errors.js";
import { toEven } from "./dynamic_size.js";

/**
 * @import { Rule } from "./dynamic_size.js"
 * @import { Settings } from "./settings.js"
 */

const MOST_RATIO = 200; // of the longer side to the shorter one

/**
 * Throws PackageError where the settings and the vision encoder disagree.
 *
 * @param {Settings} settings @param {any} vision of the manifest's architecture
 * @param {Readonly<Record<string, string>>} named special tokens by role @returns {Rule}
 */
export function qwenRule(settings, vision, named) {
  for (const name of ["patch_size", "merge_size", "temporal_patch_size"]) {
    const found = settings.count(name, vision[name]);
    if (found === vision[name] && settings.flag("do_resize", true)) continue;
    throw new PackageError(
      `'${name}' is ${found} in the image processor's settings, and ${vision[name]} in the vision encoder. Copy ` +
        "preprocessor_config.json from the same checkpoint again.",
    );
  }
  const size = settings.pixelCounts("size");
  const smallest = settings.count("min_pixels", size.shortest_edge ?? 56 * 56);
  const largest = settings.count("max_pixels", size.longest_edge ?? 28 * 28 * 1280);
  if (smallest > largest) {
    throw new PackageError(
      `the image processor asks for ${smallest} pixels at least and ${largest} at most; copy ` +
        "preprocessor_config.json from the checkpoint again.",
    );
  }
  const factor = vision.patch_size * vision.merge_size;
  return { placeholder: named.image_token ?? "<|image_pad|>", row: "", end: "", size: (width, height) => {
    if (Math.max(width, height) > MOST_RATIO * Math.min(width, height)) {
      throw new RangeError(
        `an image has ${width} x ${height} pixels; the model takes those whose longer side is at most ${MOST_RATIO} times ` +
          "the shorter one. Crop it.",
      );
    }
    const [area, sides] = [width * height, [width, height]];
    let found = sides.map((side) => toEven(side / factor) * factor);
    if (found[0] * found[1] > largest) {
      const scale = Math.sqrt(area / largest);
      found = sides.map((side) => Math.max(factor, Math.floor(side / scale / factor) * factor));
    } else if (found[0] * found[1] < smallest) {
      const scale = Math.sqrt(smallest / area);
      found = sides.map((side) => Math.ceil((side * scale) / factor) * factor);
    }
    return [found[0], found[1]];
  } };
}
