// A model's vision encoder: a further session of ONNX Runtime over the weights of the decoder.

import { lacking, openSession } from "./further_session.js";

/**
 * @import { Encoder, Values } from "./features.js"
 * @import { Processor } from "./prompt.js"
 * @import { Loaded } from "../worker/load_model.js"
 */

/** Graphs by that of the decoder, whose type of activations they have. @type {Record<string, string>} */
const VARIANTS = { "webgpu-float16": "vision-float16", "gpu-float32": "vision-gpu-float32" };
const ON_CPU = "vision-float32";

/**
 * Rejects with DeviceError where the folder has no graph for it, or ONNX Runtime does not load it; with PackageError where
 * it cannot be downloaded.
 *
 * @param {Loaded} loaded @param {Processor} processor @returns {Promise<Encoder>}
 */
export async function openEncoder(loaded, processor) {
  const { package: opened, device, engine, graph: decoder } = loaded;
  const { window, bidirectional, bidirectional_in_windows } = /** @type {any} */ (opened.manifest.architecture).vision;
  const hasGpu = device.name !== "wasm";
  const isOnGpu = hasGpu && engine.attendsToMany && !window;
  if (hasGpu && !isOnGpu) {
    const why = window ? "attention in a page's GPU has no mask of windows" : "this GPU's attention is wrong over many tokens";
    console.info(`embedllm: images are encoded on the CPU: ${why} (docs/webgpu.md#faults)`);
  }
  if (!bidirectional && !bidirectional_in_windows && !(await (await opened.file(decoder.file)).text()).includes("image_features")) {
    throw lacking(decoder.variant);
  }
  const { ort, session, activations } = await openSession(loaded, isOnGpu ? VARIANTS[decoder.variant] : ON_CPU, isOnGpu);
  const type = activations === "float16" ? "float16" : "float32";
  return {
    async encode(tile) {
      const own = type === "float16" ? narrow : (/** @type {Float32Array<ArrayBuffer>} */ floats) => floats;
      const given = { pixel_values: { type, ...processor.pixelValues(tile, own) }, ...processor.besides(tile) };
      const inputs = Object.entries(given).map(([name, { type: kind, data, dims }]) => {
        const [found, values] = data instanceof Float32Array ? [type, own(/** @type {Float32Array<ArrayBuffer>} */ (data))] : [kind, data];
        return [name, new ort.Tensor(/** @type {"float32"} */ (found), /** @type {any} */ (values), dims)];
      });
      const { image_features: found } = await session.run(Object.fromEntries(inputs));
      const { buffer, byteOffset, length } = /** @type {Values} */ (found.data); // in new browsers a Float16Array
      const hidden = found.dims[2];
      if (type === "float16") return { rows: new Uint16Array(buffer, byteOffset, length), hidden };
      const floats = new Float32Array(buffer, byteOffset, length);
      return { rows: decoder.activations === "float16" ? narrow(floats) : floats, hidden };
    },
    close: () => void session.release(),
  };
}

/** The bits of the nearest float16 numbers. @param {Float32Array<ArrayBuffer>} floats */
function narrow(floats) {
  return Uint16Array.from(new Uint32Array(floats.buffer, floats.byteOffset, floats.length), (bits, place) => {
    const sign = (bits >>> 16) & 0x8000;
    const size = bits & 0x7fffffff;
    if (size >= 0x47800000) return sign | 0x7c00; // infinite
    if (size < 0x38800000) return sign | Math.round(Math.abs(floats[place]) * 2 ** 24); // below the normal ones
    return sign | ((size + 0xfff + ((size >> 13) & 1) - 0x38000000) >> 13); // ties to even
  });
}
