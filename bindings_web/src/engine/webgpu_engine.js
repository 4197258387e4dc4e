// A model on a GPU, by ONNX Runtime's build with WebGPU: what it is tried with before it answers.

import { WEIGHTS } from "../package/manifest.js";
import { BlobBytes } from "./blob_bytes.js";
import { DeviceError, reason } from "../errors.js";
import { Engine } from "./engine.js";
import { GpuModel } from "./webgpu_model.js";
import { GpuSteps } from "./webgpu_steps.js";
import { forgetGpuRuntime, loadGpuRuntime } from "./ort_runtime.js";
import { forget, noteRight, trialKey, wasRight } from "./tried_models.js";
import { withLengths } from "./graph_lengths.js";

/** @import { Device, Parts } from "./engine.js" */

const CHUNK = 512; // tokens fed at once
/** Most that attention takes on some Vulkan drivers: from 32 on its sums are wrong there (docs/webgpu.md#faults) */
const SAFE_CHUNK = 31;
const TRIED = 70; // tokens that a loaded model is tried with: more than a block of attention's, which are 64
const TRIED_STEPS = 4, TRIED_STEPS_OF_STATES = 7; // of them, captured: a step for each place of states, behind one that is fed again

/** @param {Device} device @param {Parts} parts @param {{base: string}} options */
export async function openGpu(device, parts, { base }) {
  const { ort, module } = await loadGpuRuntime(base);
  const plain = new Uint8Array(await parts.graph.arrayBuffer());
  const lengths = withLengths(plain);
  /** @param {Uint8Array} graph @param {boolean} enableGraphCapture */
  const create = (graph, enableGraphCapture) => ort.InferenceSession.create(graph, {
    executionProviders: [{ name: "webgpu" }], // the name alone would capture nothing
    enableGraphCapture,
    externalData: [{ path: WEIGHTS, data: new BlobBytes(parts.weights) }],
    logSeverityLevel: 3,
  });
  if (!lengths) tellUncaptured("attention has a window, or the graph takes more than lengths from its mask");
  const capturing = lengths && (await create(lengths, true).catch(tellUncaptured));
  const session = capturing ?? (await create(plain, false));
  const gpu = /** @type {GPUDevice} */ (await ort.env.webgpu.device);
  const recurrent = parts.decoder.states.size ? await import("./webgpu_states.js") : null;
  const model = new GpuModel(module(), gpu, parts.decoder, parts.activations, capturing !== null, recurrent?.gpuStates);
  const { web } = /** @type {{web?: string}} */ (ort.env.versions);
  const key = parts.hash && trialKey(parts.hash, model.captures, device.description, web, navigator.userAgent);
  const chunk = await tryOnce(model, key);
  const close = () => (model.close(), session.release());
  const engine = new Engine(device, parts.decoder, chunk, () => new GpuSteps(model), close);
  engine.captures = model.captures;
  if (key) engine.forget = () => void forget(key);
  engine.attendsToMany = chunk === CHUNK;
  engine.gone = gpu.lost.then(({ reason, message }) => {
    if (engine.isClosed && !engine.isLost) return; // ONNX Runtime gave it up with the last session
    forgetGpuRuntime();
    engine.fail(new DeviceError(`the GPU was lost (${reason || "unknown"}): ${message} Load the model again.`));
  });
  return engine;
}

/** Says why steps run kernel by kernel. @param {unknown} error */
function tellUncaptured(error) {
  console.info(`embedllm: steps are not captured: ${reason(error)}`);
  return null;
}

/**
 * As tried(), but where a browser remembers that nothing was wrong with the model.
 *
 * @param {GpuModel} model @param {string | undefined} key of its trial
 */
async function tryOnce(model, key) {
  if (key && (await wasRight(key))) return CHUNK;
  const { captures } = model;
  const chunk = await tried(model);
  if (key && chunk === CHUNK && model.captures === captures) await noteRight(key);
  return chunk;
}

/**
 * How many tokens the GPU's attention may be given at once: asked of the model itself, whose shaders are compiled by
 * it. Captured steps are given up where they fail, or compute something else.
 *
 * @param {GpuModel} model
 */
async function tried(model) {
  const { context, vocabulary } = model.decoder;
  const count = Math.min(TRIED, context);
  const tokens = Array.from({ length: count }, (_, place) => (7919 * place + 13) % vocabulary);
  const steps = new GpuSteps(model);
  const fed = (/** @type {number} */ start, /** @type {number} */ stop) => {
    const from = steps.start(start);
    return steps.run(tokens.slice(from, stop), from);
  };
  try {
    await steps.grow(Math.min(256, context), 0);
    let row = await fed(0, Math.min(SAFE_CHUNK, count));
    if (count <= SAFE_CHUNK) return SAFE_CHUNK;
    const whole = Math.min(SAFE_CHUNK + 9, count); // more than one turn of attention's loop has
    const expected = (row = await fed(SAFE_CHUNK, whole));
    if (whole < count) row = await fed(whole, count);
    if (model.captures) {
      const last = await stepped(fed, count, model.decoder.states.size ? TRIED_STEPS_OF_STATES : TRIED_STEPS).catch(tellUncaptured);
      model.captures = last !== null && isClose(last, row);
      if (last && !model.captures) tellUncaptured("their logits are wrong");
    }
    return isClose(await fed(0, whole), expected) ? CHUNK : SAFE_CHUNK;
  } finally {
    steps.close();
  }
}

/**
 * The row of the last token, by steps.
 *
 * @param {(start: number, stop: number) => Promise<Float32Array>} fed @param {number} count @param {number} steps
 */
async function stepped(fed, count, steps) {
  for (let position = count - steps; position < count - 1; position++) await fed(position, position + 1);
  return fed(count - 1, count);
}

/** @param {Float32Array} found @param {Float32Array} expected */
function isClose(found, expected) {
  // not Math.max(...expected): a vocabulary is more arguments than a call may have
  const spread = expected.reduce((most, logit) => Math.max(most, Math.abs(logit)), 0);
  const off = expected.reduce((most, logit, place) => Math.max(most, Math.abs(logit - found[place])), 0);
  return off < 0.05 * Math.max(spread, 1); // right: 1e-6 of it, float16 0.01; wrong: 0.2
}
