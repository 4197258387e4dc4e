// Opens a model on a device, by what only that kind of device needs: loaded when it is taken.

import { DeviceError, reason } from "../errors.js";
import { whileOpen } from "./blob_bytes.js";

/** @import { Device, Engine, Parts } from "./engine.js" */

/**
 * @param {Device} device @param {Parts} parts @param {{base: string, threads: number}} options base: URL of
 *   onnxruntime-web's dist folder
 * @returns {Promise<Engine>}
 */
export async function openEngine(device, parts, options) {
  try {
    const open = device.name === "wasm" ? (await import("./wasm_engine.js")).openCpu : (await import("./webgpu_engine.js")).openGpu;
    return await whileOpen(parts.weights, () => open(device, parts, options));
  } catch (error) {
    if (error instanceof DeviceError) throw error;
    throw new DeviceError(`'${device.name}' cannot load the model: ${reason(error)}`, { cause: error });
  }
}
