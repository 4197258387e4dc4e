// Images in messages: parts to files, and a rendered prompt to one with a token for each row of their features; the twin
// of embedllm/images/prompt.py.

import { ContextFull, DeviceUnavailable, TemplateError } from "../errors.js";
import { WEIGHTS } from "../package/manifest.js";
import { checkKnown } from "../package/prompt_length.js";
import { decode } from "./decode.js";
import { openEncoder } from "./encoder.js";
import { ImageFeatures, firstId } from "./features.js";
import { MAX_IMAGES, checkBytes, dataStart, imageOf } from "./limits.js";
import { isEncodedHere, isImagePart } from "./parts.js";

/**
 * @import { RenderedPrompt } from "../package/content_marks.js"
 * @import { Loaded } from "../worker/load_model.js"
 * @import { Message } from "../worker/protocol.js"
 * @import { Prepared } from "./features.js"
 * @import { ImagePlaces } from "./places.js"
 * @import { Rgb } from "./resize.js"
 * @import { WholeImages } from "./whole_images.js"
 * @typedef {Awaited<ReturnType<typeof import("./any_size.js").openProcessor>> | import("./processor.js").TilingProcessor |
 *   import("./internvl.js").InternVLProcessor | import("./fixed_size.js").FixedSizeProcessor} Processor
 * @typedef {{width: number, height: number}} Size
 * @typedef {Size & {digest: string}} Source digest: sha256 of the file
 * @typedef {Prepared & {text: string, source: Source}} Image text: what takes its place in the prompt
 */

const MOST_KNOWN = 1000; // images: those of later turns need no decoding

/** The images of a loaded model. */
export class ModelImages {
  #loaded;
  #features;
  #processor;
  #imageToken;
  /** by their hash, and by the id that a page posted them with @type {Map<string, Source>} */
  #known = new Map();

  /**
   * Use ModelImages.open().
   *
   * @param {Loaded} loaded @param {Processor} processor @param {ImagePlaces | null} [places] @param {WholeImages | null} [whole]
   */
  constructor(loaded, processor, places = null, whole = null) {
    this.#loaded = loaded;
    this.#processor = processor;
    this.#imageToken = /** @type {any} */ (loaded.manifest.architecture).vision.image_token;
    this.#features = loaded.engine.images = new ImageFeatures(() => openEncoder(loaded, processor), places, whole);
  }

  /** Rejects with RangeError and DeviceUnavailable for a model that takes no images here, PackageError. @param {Loaded} loaded */
  static async open(loaded) {
    const { manifest, texts, tokenizer, device } = loaded;
    const { vision, rope } = /** @type {any} */ (manifest.architecture);
    if (!vision) {
      throw new RangeError(
        `'${manifest.name}' reads text only: it takes no images. Leave them out, or load a vision-language model; ` +
          "export it again where its folder was written as a text decoder (docs/guide-images.md).",
      );
    }
    if (!isEncodedHere(vision)) {
      const [reason, remedy] = ["browsers do not run its vision encoder", "use the device 'cpu' of a desktop"];
      throw new DeviceUnavailable(`'${device.name}' takes no images of '${manifest.name}': ${reason}; ${remedy}.`, {
        tried: [[device.name, reason, remedy]],
      });
    }
    if (vision.bidirectional) {
      const { FixedSizeProcessor, WholeImages } = await import("./fixed_size.js");
      return new ModelImages(loaded, new FixedSizeProcessor(texts, vision, tokenizer.named), null, new WholeImages(loaded));
    }
    if (vision.class_token) {
      const { InternVLProcessor } = await import("./internvl.js");
      return new ModelImages(loaded, new InternVLProcessor(texts, vision, tokenizer.named));
    }
    if (!vision.kind) {
      const { TilingProcessor } = await import("./processor.js");
      return new ModelImages(loaded, new TilingProcessor(texts, vision, tokenizer.named));
    }
    const { ImagePlaces, WholeImages, openProcessor } = await import("./any_size.js");
    const whole = vision.bidirectional_in_windows ? new WholeImages(loaded) : null;
    const places = rope.mrope ? new ImagePlaces(await loaded.package.file(WEIGHTS), rope) : null;
    return new ModelImages(loaded, await openProcessor(texts, vision, tokenizer.named), places, whole);
  }

  /**
   * Messages with {type: "image"} in place of each image, as templates take them, and the images in their order.
   *
   * Rejects with RangeError, which names the message, for what is no image; with ContextFull where they alone do not fit; with
   * DeviceError where the folder or the device lacks what images take.
   *
   * @param {readonly Message[]} messages
   */
  async split(messages) {
    const parts = messages.flatMap(({ content }, place) =>
      (Array.isArray(content) ? content.filter(isImagePart) : []).map((part) => ({ part, place })));
    if (parts.length > MAX_IMAGES) throw new RangeError(`the messages have ${parts.length} images; send ${MAX_IMAGES} at most.`);
    const limit = this.#loaded.engine.context;
    const images = [];
    let tokens = 0;
    for (const { part, place } of parts) {
      const image = await this.#opened(part).catch((error) => {
        if (error instanceof RangeError) error.message = `messages[${place}]: ${error.message}`;
        throw error;
      });
      images.push(image);
      tokens += image.tokens;
      if (tokens <= limit) continue;
      throw new ContextFull(
        `${images.length} of the ${parts.length} images of the prompt have ${tokens} tokens; ${limit} can be held together ` +
          "with the reply. Send fewer or smaller images.",
        { tokens, limit },
      );
    }
    await this.#features.open();
    const mark = (/** @type {any} */ part) => (isImagePart(part) ? { type: "image" } : part);
    const shown = messages.map((message) =>
      Array.isArray(message.content) ? { ...message, content: message.content.map(mark) } : message);
    return { shown, images };
  }

  /**
   * As split(), for Python, which writes the prompt: the images may be fed from now on.
   *
   * @param {readonly Message[]} messages @returns {Promise<{shown: readonly any[], images: Source[]}>}
   */
  async described(messages) {
    const { shown, images } = await this.split(messages);
    this.#features.set(images);
    return { shown, images: images.map(({ source }) => source) };
  }

  /**
   * The tokens of what a chat template wrote, with the ids of the images, which may be fed from now on.
   *
   * A placeholder's text in a message is only text. Throws TemplateError where the template writes more or less of them.
   *
   * @param {RenderedPrompt} written @param {Image[]} images
   */
  tokens({ text, marked }, images) {
    const { tokenizer, engine } = this.#loaded;
    const mark = this.#processor.placeholder;
    const pieces = marked.split(mark);
    if (pieces.length - 1 !== images.length) {
      throw new TemplateError(
        `the chat template writes ${pieces.length - 1} placeholders '${mark}' for ${images.length} images; it has to write ` +
          "one for each part of the type 'image'.",
      );
    }
    const expanded = { text: "", marked: "" };
    let at = 0;
    for (const [place, piece] of pieces.entries()) {
      const between = images[place]?.text ?? "";
      expanded.text += text.slice(at, at + piece.length) + between;
      expanded.marked += piece + between;
      at += piece.length + mark.length;
    }
    const ids = images.flatMap(({ first, tokens }) => Array.from({ length: tokens }, (_, row) => first + row));
    let next = 0;
    const found = checkKnown(tokenizer.encodePrompt(expanded), tokenizer, engine.vocabulary, this.#imageToken);
    const tokens = found.map((token) => (token === this.#imageToken ? ids[next++] : token));
    if (next !== ids.length) {
      throw new TemplateError(`the prompt has ${next} tokens '${mark}', and its images have ${ids.length}; expected as many.`);
    }
    this.#features.set(images);
    return tokens;
  }

  /** @param {Record<string, any>} part @returns {Promise<Image>} */
  async #opened(part) {
    const read = () => bytesOf(imageOf(part));
    /** @type {Rgb[] | null} of a new image, until they are encoded */
    let made = null;
    let source = this.#known.get(part.id);
    if (!source) {
      const bytes = await read();
      // the browser's own is ten times as fast; plain http has none
      const hash = crypto.subtle ? new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)) : this.#loaded.sha256(bytes);
      const digest = hexadecimal(hash);
      source = this.#known.get(digest);
      if (!source) {
        const image = await decode(bytes);
        made = this.#processor.tiles(image);
        source = { digest, width: image.width, height: image.height };
      }
    }
    const { digest, width, height } = source;
    for (const key of [digest, part.id ?? digest]) this.#known.set(key, source);
    for (const key of this.#known.keys()) if (this.#known.size > MOST_KNOWN) this.#known.delete(key);
    const tokens = this.#processor.tokenCount(width, height);
    return {
      first: firstId(digest, tokens), tokens, source,
      grid: this.#processor.grid(width, height),
      text: this.#processor.promptText(width, height),
      tiles: async () => made ?? this.#processor.tiles(await decode(await read())),
    };
  }
}

/** @param {unknown} image a Blob or a data URL @returns {Promise<Uint8Array<ArrayBuffer>>} */
async function bytesOf(image) {
  if (image instanceof Blob) {
    checkBytes(image.size);
    return new Uint8Array(await image.arrayBuffer());
  }
  if (typeof image !== "string") throw new RangeError("an image is no data URL; expected one: data:image/png;base64,...");
  const start = dataStart(image);
  let letters;
  try {
    letters = atob(image.slice(start));
  } catch {
    throw new RangeError("an image is not valid base64. Send the whole file.");
  }
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < bytes.length; place++) bytes[place] = letters.charCodeAt(place);
  checkBytes(bytes.length);
  return bytes;
}

/** @param {Uint8Array} bytes */
const hexadecimal = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
