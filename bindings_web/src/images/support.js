// Whether a page reads the images of a model, by its description and the graph of its decoder.

const NO_KIND = undefined; // of tiles: the first kind of encoders, which manifests do not name
const KINDS = [NO_KIND, "DynamicVision"];
const POOLER = "PatchPooler"; // of Gemma 4
/** Graphs whose runs are given rotary tables here, which positions of images in rows and columns (M-RoPE) take. */
const WITH_TABLES = ["wasm-float32", "generic-float32"];
const ON_A_DESKTOP = "use the device 'cpu' of a desktop", ON_WASM = "use the device 'wasm'"; // remedies

/**
 * Why it does not, and what helps; null where it does. A model without a vision encoder is not asked for.
 *
 * @param {any} architecture of the manifest @param {string} variant of the decoder's graph
 * @returns {[reason: string, remedy: string] | null}
 */
export function imagesRefusal({ vision, rope }, variant) {
  if (!KINDS.includes(vision.kind) || vision.merger?.kind === POOLER) {
    return ["browsers do not run its vision encoder", ON_A_DESKTOP];
  }
  if (vision.bidirectional) {
    return ["tokens of its images attend to one another, which takes ONNX Runtime 1.32", ON_A_DESKTOP];
  }
  if (rope.mrope && !WITH_TABLES.includes(variant)) {
    return [`the graph '${variant}' is run without positions of images in rows and columns (M-RoPE)`, ON_WASM];
  }
  if (vision.kind && !WITH_TABLES.includes(variant)) {
    return ["images of any size are not encoded on a page's GPU", ON_WASM];
  }
  return null;
}
