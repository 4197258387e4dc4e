// A further session of ONNX Runtime over the weights of a loaded model: its vision encoder, or its decoder for images.

import { BlobBytes, whileOpen } from "../engine/blob_bytes.js";
import { loadCpuRuntime, loadGpuRuntime } from "../engine/ort_runtime.js";
import { DeviceError, reason } from "../errors.js";
import { WEIGHTS } from "../package/manifest.js";

/** @import { Loaded } from "../worker/load_model.js" */

/**
 * Rejects with DeviceError where the folder has no such graph, or ONNX Runtime does not load it; with PackageError where it
 * cannot be downloaded.
 *
 * @param {Loaded} loaded @param {string} variant of the graph @param {boolean} isOnGpu else on the CPU, beside a GPU too
 */
export async function openSession({ package: opened, device, base, threads }, variant, isOnGpu) {
  const graph = opened.manifest.graphs.find((one) => one.variant === variant);
  if (!graph) throw lacking(variant);
  const [file, weights] = [await opened.file(graph.file), await opened.file(WEIGHTS)];
  const { ort, module } = device.name === "wasm" ? await loadCpuRuntime(base, threads) : await loadGpuRuntime(base);
  const graphBytes = new Uint8Array(await file.arrayBuffer());
  const making = whileOpen(weights, () => ort.InferenceSession.create(graphBytes, {
    executionProviders: [isOnGpu ? { name: "webgpu" } : "wasm"],
    externalData: [{ path: WEIGHTS, data: new BlobBytes(weights) }],
    logSeverityLevel: 3,
  }));
  const session = await making.catch((error) => {
    throw new DeviceError(`'${device.name}' cannot load '${graph.file}': ${reason(error)}`, { cause: error });
  });
  /** @type {number} of the session, for calls of the C functions */
  const handle = module().lastSession;
  return { ort, session, handle, activations: graph.activations };
}

/** @param {string} variant of a graph that a folder has not */
export function lacking(variant) {
  return new DeviceError(
    `this model's folder was written by a version without images here: run embedllm graph FOLDER --variant ${variant}`,
  );
}
