// What this browser offers to run a model on, and why the rest is not available.

/** @import { Device } from "./engine.js" */

const ADAPTER_MS = 500; // after which a fresh browser that gave no adapter is asked again: its GPU process starts
const BACKEND = "onnxruntime-web 1.30";
const FLOAT16 = "webgpu-float16", FLOAT32 = "gpu-float32", PACKED = "generic-float32", WASM = "wasm-float32";

/**
 * Devices in the order in which "auto" tries them.
 *
 * "webgpu-software" is a GPU that the CPU plays; it is there when nothing better is, and only for who asks for it.
 *
 * @returns {Promise<Device[]>}
 */
export async function devices() {
  return [...(await gpus()), cpu()];
}

/** @returns {Promise<Device[]>} */
async function gpus() {
  const gpu = /** @type {GPU | undefined} */ (/** @type {any} */ (globalThis.navigator)?.gpu);
  if (!gpu) {
    return [
      globalThis.isSecureContext === false
        ? missing("WebGPU is not given to pages that came over plain http", "serve the page by https, or on localhost")
        : missing("this browser has no WebGPU", "use a current Chrome, Edge, Firefox or Safari"),
    ];
  }
  const adapter = (await requested(gpu)) ?? (await later(ADAPTER_MS).then(() => requested(gpu)));
  if (!adapter) {
    const reason = "this browser gives WebGPU no graphics card";
    return [missing(reason, "switch hardware acceleration on in its settings, or update the graphics driver")];
  }
  const info = adapter.info;
  const description = [info.vendor, info.architecture, info.description].filter(Boolean).join(" ") || "a GPU";
  const variants = adapter.features.has("shader-f16") ? [FLOAT16, FLOAT32] : [FLOAT32];
  const found = { backend: BACKEND, description, available: true, reason: "", remedy: "", memory: 0, variants };
  const isSoftware = info.isFallbackAdapter || /** @type {any} */ (adapter).isFallbackAdapter === true;
  if (!isSoftware) return [{ ...found, name: "webgpu" }];
  const reason = `the only adapter is software (${description}), slower than 'wasm'`;
  return [missing(reason, "ask for 'webgpu-software' to use it all the same"), { ...found, name: "webgpu-software" }];
}

/** @param {GPU} gpu @returns {Promise<GPUAdapter | null>} */
function requested(gpu) {
  return gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
}

/** @param {number} ms */
function later(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** @param {string} reason @param {string} remedy @returns {Device} */
function missing(reason, remedy) {
  return { name: "webgpu", backend: BACKEND, description: "", available: false, reason, remedy, memory: 0 };
}

/** @returns {Device} */
function cpu() {
  const cores = globalThis.navigator?.hardwareConcurrency ?? 1;
  const threads = globalThis.crossOriginIsolated ? `${cores} cores` : "one core, as the page is not cross-origin isolated";
  return {
    name: "wasm",
    backend: BACKEND,
    description: `WebAssembly on the CPU, ${threads}`,
    available: true,
    reason: "",
    remedy: "",
    memory: 0,
    variants: [WASM, PACKED],
  };
}
