// A captured step as commands of our own: one pass, without ONNX Runtime, and without dispatches whose size is in a buffer.
//
// ONNX Runtime's attention reads its number of workgroups from a buffer (dispatchWorkgroupsIndirect). Chromium checks each
// such number by a dispatch, a buffer and a bind group of its own, which is most of a step's time. Captured, a step has the
// whole capacity as its total length, so these numbers never change: they are read once.

/**
 * @typedef {{pipeline: GPUComputePipeline, groups: GPUBindGroup[]}} Kernel
 * @typedef {Kernel & {size: [number, number, number]}} Sized
 * @typedef {Kernel & {buffer: GPUBuffer, offset: number}} Indirect
 */

const SIZE_BYTES = 12; // of three numbers of workgroups
const TILE = 64; // tokens of a workgroup of attention, in onnxruntime-web 1.30

/** The dispatches of one step, over the buffers that it was captured with. */
export class StepReplay {
  #dispatches;

  /** @param {(Sized | Indirect)[]} dispatches */
  constructor(dispatches) {
    this.#dispatches = dispatches;
  }

  /**
   * Runs a captured step twice more, which gives what it gave before: null where it is more than dispatches.
   *
   * @param {GPUDevice} device @param {() => Promise<void>} replay has ONNX Runtime replay it
   * @param {number} capacity tokens
   */
  static async of(device, replay, capacity) {
    const dispatches = await record(device, replay);
    if (!dispatches) return null;
    const sizes = await readSizes(device, dispatches);
    return new StepReplay(dispatches.map((each, place) => {
      const [x, y, z] = sizes[place];
      const isOfCapacity = x === Math.ceil(capacity / TILE) && y && z; // else it may be that of a shorter sequence
      return "size" in each || !isOfCapacity ? each : { ...each, size: [x, y, z] };
    }));
  }

  /** @param {GPUCommandEncoder} commands */
  encode(commands) {
    const pass = commands.beginComputePass();
    let last = null;
    for (const dispatch of this.#dispatches) {
      if (dispatch.pipeline !== last) pass.setPipeline((last = dispatch.pipeline));
      encodeDispatch(pass, dispatch);
    }
    pass.end();
  }
}

/** @param {GPUComputePassEncoder} pass @param {Sized | Indirect} dispatch */
function encodeDispatch(pass, dispatch) {
  dispatch.groups.forEach((group, place) => pass.setBindGroup(place, group));
  if ("size" in dispatch) pass.dispatchWorkgroups(...dispatch.size);
  else pass.dispatchWorkgroupsIndirect(dispatch.buffer, dispatch.offset);
}

/** What is encoded on a device while it watches. */
class Recording {
  /** @type {(Sized | Indirect)[]} */
  dispatches = [];
  /** whether nothing else was encoded or written */
  isComplete = true;

  /** @param {GPUCommandEncoder} encoder */
  encoder(encoder) {
    const begin = (/** @type {GPUComputePassDescriptor} */ options) => this.#pass(encoder.beginComputePass(options));
    return this.#watched(encoder, { beginComputePass: begin }, "finish");
  }

  /** @param {GPUComputePassEncoder} pass */
  #pass(pass) {
    /** @type {GPUComputePipeline} */
    let pipeline;
    /** @type {GPUBindGroup[]} */
    let groups = [];
    return this.#watched(pass, {
      setPipeline: (/** @type {GPUComputePipeline} */ set) => pass.setPipeline((pipeline = set)),
      setBindGroup: (/** @type {number} */ place, /** @type {GPUBindGroup} */ group, /** @type {unknown[]} */ ...offsets) => {
        if (offsets.length) this.isComplete = false;
        groups = Object.assign([...groups], { [place]: group });
        pass.setBindGroup(place, group, .../** @type {[]} */ (offsets));
      },
      dispatchWorkgroups: (/** @type {number} */ x, y = 1, z = 1) => {
        this.dispatches.push({ pipeline, groups, size: [x, y, z] });
        pass.dispatchWorkgroups(x, y, z);
      },
      dispatchWorkgroupsIndirect: (/** @type {GPUBuffer} */ buffer, /** @type {number} */ offset) => {
        this.dispatches.push({ pipeline, groups, buffer, offset });
        pass.dispatchWorkgroupsIndirect(buffer, offset);
      },
    }, "end");
  }

  /**
   * An object with methods of ours; to call others than `plain` is something else.
   *
   * @template {object} Watched @param {Watched} target @param {Record<string, Function>} own @param {string} plain
   */
  #watched(target, own, plain) {
    return new Proxy(target, {
      get: (object, /** @type {keyof Watched & string} */ name) => {
        const value = object[name];
        if (typeof value !== "function") return value;
        if (!own[name] && name !== plain) this.isComplete = false;
        return own[name] ?? value.bind(object);
      },
    });
  }
}

/**
 * What a function dispatches before it first waits; null where anything else is done on the GPU before it ends.
 *
 * @param {GPUDevice} device @param {() => Promise<void>} replay
 */
async function record(device, replay) {
  const recording = new Recording();
  const { queue } = device;
  device.createCommandEncoder = (given) =>
    recording.encoder(GPUDevice.prototype.createCommandEncoder.call(device, given));
  queue.writeBuffer = (...given) => {
    recording.isComplete = false;
    GPUQueue.prototype.writeBuffer.apply(queue, given);
  };
  const { dispatches } = recording;
  try {
    const done = replay();
    const { length } = dispatches; // what comes later may be of another model
    await done;
    return recording.isComplete && length && length === dispatches.length ? dispatches : null;
  } finally {
    Reflect.deleteProperty(device, "createCommandEncoder");
    Reflect.deleteProperty(queue, "writeBuffer");
  }
}

/**
 * The numbers of workgroups of all, as they are when each is dispatched; a buffer may hold others later. Throws an Error
 * where the commands are refused.
 *
 * @param {GPUDevice} device @param {(Sized | Indirect)[]} dispatches @returns {Promise<number[][]>}
 */
async function readSizes(device, dispatches) {
  const staging = device.createBuffer({ size: SIZE_BYTES * dispatches.length, usage: 1 | 8 }); // MAP_READ, COPY_DST
  device.pushErrorScope("validation");
  const commands = device.createCommandEncoder();
  dispatches.forEach((dispatch, place) => {
    const pass = commands.beginComputePass();
    pass.setPipeline(dispatch.pipeline);
    encodeDispatch(pass, dispatch);
    pass.end();
    if ("buffer" in dispatch) commands.copyBufferToBuffer(dispatch.buffer, dispatch.offset, staging, SIZE_BYTES * place, SIZE_BYTES);
  });
  device.queue.submit([commands.finish()]);
  try {
    const refused = await device.popErrorScope();
    if (refused) throw new Error(refused.message);
    await staging.mapAsync(1);
    const all = new Uint32Array(staging.getMappedRange());
    return dispatches.map((_, place) => [...all.subarray(3 * place, 3 * place + 3)]);
  } finally {
    staging.destroy();
  }
}
