// The states of recurrent sequences on a GPU, in buffers of their own. Loaded for models that have some.

import { FLOAT, FLOAT16 } from "./ort_calls.js";
import { RecurrentStates } from "./recurrent_states.js";
import { AHEAD } from "./webgpu_steps.js";

/**
 * @import { OnGpu } from "./webgpu_buffers.js"
 * @import { GpuModel } from "./webgpu_model.js"
 * @typedef {OnGpu & {bytes: number}} State bytes: whole words
 * @typedef {RecurrentStates<State>} GpuStates
 */

/** Those of a new sequence. @param {GpuModel} model @returns {GpuStates} */
export function gpuStates(model) {
  const { device, size, type, decoder, takesLengths } = model;
  const submit = (/** @type {(commands: GPUCommandEncoder) => void} */ encode) => {
    const commands = device.createCommandEncoder();
    encode(commands);
    device.queue.submit([commands.finish()]);
  };
  return new RecurrentStates({
    bytesPerValue: size,
    place: (dims, bytes) => ({ ...model.place(type === "float16" ? FLOAT16 : FLOAT, dims, bytes), bytes: 4 * Math.ceil(bytes / 4) }),
    copy: (from, to) => submit((commands) =>
      from.forEach(({ buffer, bytes }, at) => commands.copyBufferToBuffer(buffer, 0, to[at].buffer, 0, bytes))),
    clear: (states) => submit((commands) => states.forEach(({ buffer }) => commands.clearBuffer(buffer))),
    free: (states) => states.forEach((state) => model.free(state)),
  }, decoder, takesLengths ? AHEAD + 1 : 2); // steps that are not wanted leave the place that they began in
}
