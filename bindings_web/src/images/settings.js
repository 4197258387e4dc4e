// preprocessor_config.json and processor_config.json, read strictly: the twin of embedllm/images/settings.py.

import { PackageError } from "../errors.js";
import { readJsonObject } from "../package/tokenizer_config.js";

const MOST_SIDE = 1 << 13; // pixels that a configuration may ask for

/** CLIP's, which settings of some processors may leave out. */
export const CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073], CLIP_STD = [0.26862954, 0.26130258, 0.27577711];

/** The values of the two files, with checked access. */
export class Settings {
  #values;

  /** @param {Map<string, string>} texts of the folder. Throws PackageError for a damaged file, and where there is none. */
  constructor(texts) {
    const [image, { image_processor: inner, ...processor }] = [
      readJsonObject(texts, "preprocessor_config.json"), readJsonObject(texts, "processor_config.json"),
    ];
    /** @type {Record<string, any>} transformers 5 saves one file, with the image processor's settings in it */
    this.#values = { .../** @type {object} */ (inner ?? {}), ...image, ...processor };
    if (Object.keys(image).length || inner) return;
    throw new PackageError("the model has a vision encoder and no preprocessor_config.json; copy it from the checkpoint.");
  }

  /** The name of the processor in transformers, such as "SmolVLMProcessor". @returns {string} */
  get processor() {
    const { processor_class: name, image_processor_type: kind } = this.#values;
    if (typeof name === "string") return name;
    return typeof kind === "string" ? kind.replace(/Fast$/, "").replace("ImageProcessor", "Processor") : "";
  }

  /** Throws PackageError unless the processor is one of these. @param {string[]} known */
  checkProcessor(known) {
    if (known.includes(this.processor)) return;
    throw new PackageError(
      `the model has the image processor '${this.processor}'; pages have ${known.join(" and ")} for its vision encoder. Use ` +
        "it on a desktop.",
    );
  }

  /** @param {string} name @param {boolean} usual @returns {boolean} */
  flag(name, usual) {
    return this.#checked(name, usual, (value) => typeof value === "boolean", "true or false");
  }

  /** The longest edge of an object of sides, in pixels. @param {string} name @param {number} usual @returns {number} */
  longestEdge(name, usual) {
    const isOne = (/** @type {any} */ value) => isWhole(value?.longest_edge) && value.longest_edge <= MOST_SIDE;
    const expected = `{longest_edge: 1 to ${MOST_SIDE}}, which bounds the number of tiles`;
    return this.#checked(name, { longest_edge: usual }, isOne, expected).longest_edge;
  }

  /** An object of sides in pixels, such as {height: 14, width: 14}, which one number may stand for. @param {string} name @param {Record<string, number>} usual */
  sides(name, usual) {
    const isOne = (/** @type {any} */ value) => isWhole(value) && value <= MOST_SIDE;
    const areAll = (/** @type {any} */ value) => isOne(value) || (isObject(value) && Object.values(value).every(isOne));
    const found = this.#checked(name, usual, areAll, `sides of 1 to ${MOST_SIDE} pixels`);
    /** @type {Record<string, number>} */
    const sides = isWhole(found) ? { height: found, width: found } : found;
    return sides;
  }

  /** An object of numbers of pixels, such as {shortest_edge: 3136, longest_edge: 12845056}. @param {string} name */
  pixelCounts(name) {
    const isOne = (/** @type {any} */ value) => isWhole(value) && value <= MOST_SIDE ** 2;
    const areAll = (/** @type {any} */ value) => isObject(value) && Object.values(value).every(isOne);
    /** @type {Record<string, number>} */
    const found = this.#checked(name, {}, areAll, `numbers of pixels, 1 to ${MOST_SIDE ** 2}`);
    return found;
  }

  /** @param {string} name @param {number} usual @returns {number} */
  count(name, usual) {
    return this.#checked(name, usual, isWhole, "a whole number, 1 or more");
  }

  /** @param {string} name @param {number} usual @returns {number} */
  number(name, usual) {
    return this.#checked(name, usual, (value) => typeof value === "number" && value > 0 && value < MOST_SIDE, "a number above 0");
  }

  /**
   * How pixels are resized and normalized. mean, std: of values from 0 to 255, of each channel.
   *
   * @param {{resample: number, mean: number | number[], std: number | number[]}} usual mean and std of values from 0 to 1
   * @param {boolean} [normalizes] where the settings do not say
   * @returns {{resample: number, mean: number[], std: number[]}}
   */
  pixels(usual, normalizes = true) {
    const isKernel = (/** @type {any} */ value) => Number.isInteger(value) && value >= 0 && value <= 5;
    const resample = this.#checked("resample", usual.resample, isKernel, "0 to 5, one of Pillow's kernels");
    const isFactor = (/** @type {any} */ value) => typeof value === "number" && value > 0 && value <= 1;
    const factor = this.flag("do_rescale", true) ? this.#checked("rescale_factor", 1 / 255, isFactor, "above 0, at most 1") : 1;
    const isNormalized = this.flag("do_normalize", normalizes);
    const mean = isNormalized ? this.#three("image_mean", usual.mean, -Infinity) : [0, 0, 0];
    const std = isNormalized ? this.#three("image_std", usual.std, 0) : [1, 1, 1];
    return { resample, mean: mean.map((one) => one / factor), std: std.map((one) => one / factor) };
  }

  /** @param {string} name @param {number | number[]} usual @param {number} above @returns {number[]} */
  #three(name, usual, above) {
    const list = (/** @type {any} */ value) => (Array.isArray(value) ? value : [value, value, value]);
    const isThree = (/** @type {any} */ value) =>
      list(value).length === 3 && list(value).every((one) => Number.isFinite(one) && one > above);
    return list(this.#checked(name, usual, isThree, above ? "3 numbers" : "3 numbers above 0"));
  }

  /** @param {string} name @param {any} usual @param {(value: any) => boolean} isRight @param {string} expected */
  #checked(name, usual, isRight, expected) {
    const value = this.#values[name] ?? usual;
    if (isRight(value)) return value;
    throw new PackageError(`'${name}' is ${JSON.stringify(value)} in the image processor's settings; expected ${expected}.`);
  }
}

/** @param {any} value */
const isWhole = (value) => Number.isInteger(value) && value >= 1;

/** @param {any} value not null */
const isObject = (value) => Object.getPrototypeOf(value) === Object.prototype;
