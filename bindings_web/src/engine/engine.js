// A loaded model on one device of the browser; opens sessions that share its weights.

import { BlobBytes } from "./blob_bytes.js";
import { DeviceError } from "../errors.js";
import { FLOAT_FILE, FloatBytes } from "./float_bytes.js";
import { GpuSteps } from "./webgpu_steps.js";
import { HostSteps, checkModule } from "./wasm_steps.js";
import { forgetGpuRuntime, loadCpuRuntime, loadGpuRuntime } from "./ort_runtime.js";
import { Session } from "./session.js";

/**
 * @import { Decoder } from "./model_shape.js"
 * @import { Steps } from "./session.js"
 * @typedef {{name: string, backend: string, description: string, available: boolean, reason: string, remedy: string,
 *   memory: number, variants?: string[]}} Device variants: of the graphs that it can run, the best first
 * @typedef {{graph: Blob, weights: Blob, activations: "float32" | "float16", decoder: Decoder}} Parts
 */

const WEIGHTS = "weights.safetensors";
const CPU_CHUNK = 64; // tokens fed at once: more would keep an interruption waiting
const GPU_CHUNK = 512;
/** Most that attention takes on Vulkan: from 32 on its sums are wrong there (docs/webgpu.md) */
const SAFE_CHUNK = 31;
const GONE_MS = 300; // after a step that failed, to hear that the GPU is lost

export class Engine {
  remedy = "export with a larger --context";
  /** whether the device failed; only another load helps then */
  isLost = false;
  isClosed = false;
  /** told once, when it fails @type {(error: Error) => void} */
  onLost = () => {};
  /** settles when the device is gone, as GPUs can be @type {Promise<unknown>} */
  gone = new Promise(() => {});
  /** @type {DeviceError | null} */
  #failure = null;
  #steps;
  #close;
  #turn = Promise.resolve();

  /**
   * @param {Device} device @param {Decoder} decoder @param {number} chunk
   * @param {() => Steps} steps makes those of a new sequence @param {() => void} close
   */
  constructor(device, decoder, chunk, steps, close) {
    this.device = device;
    this.context = decoder.context;
    this.vocabulary = decoder.vocabulary;
    this.chunk = chunk;
    this.#steps = steps;
    this.#close = close;
  }

  /** A new sequence. @param {number} [capacity] tokens there will be room for from the first feed on */
  open(capacity = 0) {
    const { context, vocabulary, remedy } = this;
    const chunk = this.chunk;
    return new Session(
      this.#steps(),
      {
        context, vocabulary, chunk, remedy,
        fail: (error) => this.#failed(error),
        alone: (work) => this.#alone(work),
        after: (work) => this.#after(work),
      },
      capacity,
    );
  }

  close() {
    this.isClosed = true;
    void this.#after(async () => this.#close());
  }

  /** The DeviceError that ended this engine; ONNX Runtime's binding is in no known state after one. */
  fail(/** @type {unknown} */ error) {
    if (this.#failure) return this.#failure;
    const message = error instanceof Error ? error.message : String(error);
    this.#failure =
      error instanceof DeviceError ? error : new DeviceError(`'${this.device.name}' failed: ${message}`, { cause: error });
    this.isLost = true;
    this.onLost(this.#failure);
    return this.#failure;
  }

  /** What ended it: that the GPU was lost, if it was, and not which step of it failed for that. @param {unknown} error */
  async #failed(error) {
    await Promise.race([this.gone, new Promise((resolve) => setTimeout(resolve, GONE_MS))]);
    return this.fail(error);
  }

  /** One step at a time. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
  #alone(work) {
    return this.#after(() => {
      if (this.isLost) throw new DeviceError(`'${this.device.name}' failed before; load the model again.`);
      return work();
    });
  }

  /** Runs it when what was asked for before has ended, well or not. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
  #after(work) {
    const done = this.#turn.then(work);
    this.#turn = done.then(
      () => {},
      () => {},
    );
    return done;
  }
}

/**
 * @param {Device} device @param {Parts} parts @param {{base: string, threads: number}} options base: URL of
 *   onnxruntime-web's dist folder
 * @returns {Promise<Engine>}
 */
export async function openEngine(device, parts, options) {
  try {
    return await (device.name === "wasm" ? openCpu(device, parts, options) : openGpu(device, parts, options));
  } catch (error) {
    if (error instanceof DeviceError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    throw new DeviceError(`'${device.name}' cannot load the model: ${reason}`, { cause: error });
  }
}

/** @param {Device} device @param {Parts} parts @param {{base: string, threads: number}} options */
async function openCpu(device, { graph, weights, decoder }, { base, threads }) {
  const { ort, module } = await loadCpuRuntime(base, threads);
  const session = await ort.InferenceSession.create(new Uint8Array(await graph.arrayBuffer()), {
    executionProviders: ["wasm"],
    externalData: [
      { path: WEIGHTS, data: new BlobBytes(weights) },
      { path: FLOAT_FILE, data: new FloatBytes(weights, decoder) },
    ],
    logSeverityLevel: 3,
  });
  const inner = module();
  checkModule(inner);
  const handle = inner.lastSession;
  return new Engine(device, decoder, CPU_CHUNK, () => new HostSteps(inner, handle, decoder), () => session.release());
}

/** @param {Device} device @param {Parts} parts @param {{base: string}} options */
async function openGpu(device, { graph, weights, activations, decoder }, { base }) {
  const ort = await loadGpuRuntime(base);
  /** @type {Record<string, "gpu-buffer" | "cpu">} */
  const preferredOutputLocation = { logits: "cpu" };
  decoder.layers.forEach((_, layer) => {
    for (const part of ["key", "value"]) preferredOutputLocation[`present.${layer}.${part}`] = "gpu-buffer";
  });
  const session = await ort.InferenceSession.create(new Uint8Array(await graph.arrayBuffer()), {
    executionProviders: ["webgpu"],
    externalData: [{ path: WEIGHTS, data: new BlobBytes(weights) }],
    preferredOutputLocation,
    logSeverityLevel: 3,
  });
  const gpu = /** @type {GPUDevice} */ (await ort.env.webgpu.device);
  const steps = () => new GpuSteps(ort, session, gpu, decoder, activations);
  const chunk = await largestChunk(steps, decoder);
  const engine = new Engine(device, decoder, chunk, steps, () => session.release());
  engine.gone = gpu.lost.then(({ reason, message }) => {
    if (engine.isClosed && !engine.isLost) return; // ONNX Runtime gave it up with the last session
    forgetGpuRuntime();
    engine.fail(new DeviceError(`the GPU was lost (${reason || "unknown"}): ${message} Load the model again.`));
  });
  return engine;
}

/**
 * How many tokens the GPU's attention may be given at once: asked of the model itself, whose shaders are compiled by it.
 *
 * @param {() => Steps} make @param {Decoder} decoder
 */
async function largestChunk(make, decoder) {
  const count = Math.min(SAFE_CHUNK + 9, decoder.context); // more than one turn of the loop has
  if (count <= SAFE_CHUNK) return SAFE_CHUNK;
  const tokens = Array.from({ length: count }, (_, place) => (7919 * place + 13) % decoder.vocabulary);
  const steps = make();
  try {
    await steps.grow(Math.min(256, decoder.context), 0);
    await steps.run(tokens.slice(0, SAFE_CHUNK), 0);
    const expected = (await steps.run(tokens.slice(SAFE_CHUNK), SAFE_CHUNK)).slice();
    const found = await steps.run(tokens, 0);
    // not Math.max(...expected): a vocabulary is more arguments than a call may have
    const spread = expected.reduce((most, logit) => Math.max(most, Math.abs(logit)), 0);
    const off = expected.reduce((most, logit, place) => Math.max(most, Math.abs(logit - found[place])), 0);
    return off < 0.05 * Math.max(spread, 1) ? GPU_CHUNK : SAFE_CHUNK; // right: 1e-6 of it, float16 0.01; wrong: 0.2
  } finally {
    steps.close();
  }
}
