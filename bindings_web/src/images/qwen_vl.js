// The sizes of images in Qwen's models, PaddleOCR-VL and GLM-OCR: the twin of embedllm/images/dynamic_size.py.

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
 * @param {Readonly<Record<string, string>>} named special tokens by role
 * @param {{limits?: [least: number, most: number], times?: number}} [own] limits: pixels, where the settings do not say it;
 *   times: that an image counts in them
 * @returns {Rule}
 */
export function qwenRule(settings, vision, named, { limits = [56 * 56, 28 * 28 * 1280], times = 1 } = {}) {
  for (const name of ["patch_size", "merge_size", "temporal_patch_size"]) {
    const found = settings.count(name, vision[name]);
    if (found === vision[name] && settings.flag("do_resize", true)) continue;
    throw new PackageError(
      `'${name}' is ${found} in the image processor's settings, and ${vision[name]} in the vision encoder. Copy ` +
        "preprocessor_config.json from the same checkpoint again.",
    );
  }
  const size = settings.pixelCounts("size");
  const smallest = settings.count("min_pixels", size.shortest_edge ?? limits[0]);
  const largest = settings.count("max_pixels", size.longest_edge ?? limits[1]);
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
    if (found[0] * found[1] > largest / times) {
      const scale = Math.sqrt(area / (largest / times));
      found = sides.map((side) => Math.max(factor, Math.floor(side / scale / factor) * factor));
    } else if (found[0] * found[1] < smallest / times) {
      const scale = Math.sqrt(smallest / times / area);
      found = sides.map((side) => Math.ceil((side * scale) / factor) * factor);
    }
    return [found[0], found[1]];
  } };
}

/**
 * A side of less than a square becomes one first, and the other one longer.
 *
 * @param {Settings} settings @param {any} vision @param {Readonly<Record<string, string>>} named @returns {Rule}
 */
export function paddleOcrRule(settings, vision, named) {
  const rule = qwenRule(settings, vision, { image_token: "<|IMAGE_PLACEHOLDER|>", ...named }, { limits: [384 ** 2, 1536 ** 2] });
  const factor = vision.patch_size * vision.merge_size;
  return { ...rule, size: (width, height) => {
    if (height < factor) [width, height] = [toEven((width * factor) / height), factor];
    if (width < factor) [width, height] = [factor, toEven((height * factor) / width)];
    return rule.size(width, height);
  } };
}

/**
 * An image with a side of less than a square is scaled up first.
 *
 * @param {Settings} settings @param {any} vision @param {Readonly<Record<string, string>>} named @returns {Rule}
 */
export function glmRule(settings, vision, named) {
  const own = { limits: /** @type {[number, number]} */ ([112 ** 2, 28 ** 2 * 15000]), times: vision.temporal_patch_size };
  const rule = qwenRule(settings, vision, { image_token: "<|image|>", ...named }, own);
  const factor = vision.patch_size * vision.merge_size;
  return { ...rule, size: (width, height) => {
    const scale = Math.max(factor / height, factor / width, 1);
    return rule.size(Math.trunc(width * scale), Math.trunc(height * scale));
  } };
}
