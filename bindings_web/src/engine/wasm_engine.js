// A model on the CPU, by ONNX Runtime's build for WebAssembly.

import { WEIGHTS } from "../package/manifest.js";
import { BlobBytes } from "./blob_bytes.js";
import { Engine } from "./engine.js";
import { FLOAT_FILE, FloatBytes } from "./float_bytes.js";
import { HostSteps } from "./wasm_steps.js";
import { OrtCalls } from "./ort_calls.js";
import { loadCpuRuntime } from "./ort_runtime.js";

/** @import { Device, Parts } from "./engine.js" */

const CHUNK = 64; // tokens fed at once: more would keep an interruption waiting

/** @param {Device} device @param {Parts} parts @param {{base: string, threads: number}} options */
export async function openCpu(device, { graph, weights, decoder }, { base, threads }) {
  const { ort, module } = await loadCpuRuntime(base, threads);
  const session = await ort.InferenceSession.create(new Uint8Array(await graph.arrayBuffer()), {
    executionProviders: ["wasm"],
    externalData: [
      { path: WEIGHTS, data: new BlobBytes(weights) },
      { path: FLOAT_FILE, data: new FloatBytes(weights, decoder) },
    ],
    logSeverityLevel: 3,
  });
  const calls = new OrtCalls(module());
  const handle = calls.module.lastSession;
  const recurrent = decoder.states.size ? await import("./wasm_states.js") : null;
  const steps = () => new HostSteps(calls, handle, decoder, recurrent?.hostStates(calls, decoder));
  return new Engine(device, decoder, CHUNK, steps, () => session.release());
}
