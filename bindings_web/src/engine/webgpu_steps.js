// Steps on WebGPU: the KV is in GPU buffers of a fixed capacity, past and present at once, written in place.
//
// The GPU guesses the token that the host will choose of each row, and puts it into the inputs of the next step
// (next_token.js). So some steps run ahead of the host. The host chooses from the same rows all the same: a step that
// it does not ask for is forgotten, as a rewind forgets.

import { DeviceError } from "../errors.js";
import { turn } from "../worker/yield_to_events.js";
import { widen } from "./float_bytes.js";

/**
 * @import { WithImages } from "../images/features.js"
 * @import { Draws } from "./next_token.js"
 * @import { GpuBuffers, OnGpu } from "./webgpu_buffers.js"
 * @import { GpuModel } from "./webgpu_model.js"
 * @typedef {{guess: number, row: Float32Array<ArrayBuffer>}} Read of a step; guess: -1 where the GPU chooses none
 */

const READ_USAGE = 1 | 8; // MAP_READ, COPY_DST
const HEAD = 16; // bytes before a row: the token after it
const WRONG = 2; // guesses behind a prompt, and one more for RIGHT right ones; where more are wrong, nothing runs ahead
const RIGHT = 8;
export const AHEAD = 4; // most of them: what is not wanted delays what comes next by that much
const POLL_MS = 0.1; // between two looks for a row that is waited for
const LONGEST_MS = 12; // of such looks: a thread does nothing else meanwhile
const RETRY = 8; // of rows that take longer, one is looked for

/** The KV of one sequence and the steps over it. */
export class GpuSteps {
  #model;
  /** @type {GpuBuffers | null} */
  #buffers = null;
  /** @type {GPUBuffer[]} that rows are read through, and are free */
  #staging = [];
  #end = -1; // tokens held when the latest row came
  #guess = -1; // the GPU's of the token after that
  #right = 0; // guesses since the latest prompt
  #wrong = 0;
  #frontier = 0; // tokens up to which steps have run
  /** @type {{read: Promise<Read>}[]} behind the latest row */
  #ahead = [];
  #slow = 0; // rows waited for since one came soon
  #isClosed = false;

  /** @param {GpuModel} model */
  constructor(model) {
    this.#model = model;
  }

  get capacity() {
    return this.#buffers?.capacity ?? 0;
  }

  /** @param {number} capacity tokens @param {number} held of them, kept */
  async grow(capacity, held) {
    const { device, size, decoder } = this.#model;
    const before = this.#buffers;
    const grown = await this.#model.take(capacity);
    this.#forget();
    if (before && held) {
      const commands = device.createCommandEncoder();
      for (const [layer, { kvHeads, headDim }] of decoder.layers.entries()) {
        for (const name of [`${layer}.key`, `${layer}.value`]) {
          const [source, target] = [before, grown].map(({ kv }) => /** @type {OnGpu} */ (kv.get(name)).buffer);
          for (let head = 0; head < kvHeads; head++) {
            const [from, to] = [before.capacity, capacity].map((tokens) => size * head * tokens * headDim);
            commands.copyBufferToBuffer(source, from, target, to, size * held * headDim);
          }
        }
      }
      device.queue.submit([commands.finish()]);
      if (before.states) grown.states?.takeFrom(before.states);
    }
    if (before) this.#model.give(before);
    this.#buffers = grown;
  }

  /** From which token on a sequence of that many is fed, to go on. @param {number} position */
  start(position) {
    return this.#buffers?.states?.goBack(position) ?? position;
  }

  /**
   * @param {ArrayLike<number>} tokens @param {number} position of the first
   * @param {Draws | null} [draws] how the host will choose the next tokens; null: unknown
   * @param {WithImages | null} [images] among the tokens
   * @returns {Promise<Float32Array>} the logits after the last of them
   */
  async run(tokens, position, draws = null, images = null) {
    const buffers = this.#held();
    buffers.states?.begin(tokens.length);
    if (tokens.length === 1 && position && buffers.isCaptured && !images?.features) {
      await buffers.use(images?.tables ?? null);
      return this.#step(tokens[0], position, draws);
    }
    this.#forget();
    await buffers.feed(tokens, position, images);
    buffers.states?.end(tokens.length);
    this.#right = this.#wrong = 0;
    return this.#take(await this.#awaitRow(this.#read(buffers, draws, 0)), position + tokens.length);
  }

  /** @param {number} token @param {number} position @param {Draws | null} draws */
  async #step(token, position, draws) {
    const buffers = this.#held();
    const isGuessed = position === this.#end && token === this.#guess;
    if (position !== this.#end) this.#right = this.#wrong = 0;
    else if (isGuessed) this.#right++;
    else this.#wrong++;
    let step = isGuessed ? this.#ahead.shift() : undefined;
    if (!step) {
      if (!isGuessed || this.#frontier !== position) buffers.setNext(token, position);
      this.#forget();
      this.#frontier = position;
      step = await this.#launch(buffers, draws, 0);
    }
    buffers.states?.end(1);
    const pays = draws && this.#wrong <= WRONG + this.#right / RIGHT;
    const most = pays ? Math.min(AHEAD, (draws.left?.() ?? Infinity) - 1) : 0; // less the row of this step
    while (this.#ahead.length < most && this.#frontier < buffers.capacity) {
      this.#ahead.push(await this.#launch(buffers, draws, 1 + this.#ahead.length));
    }
    return this.#take(await (this.#ahead.length ? step.read : this.#awaitRow(step.read)), position + 1);
  }

  /**
   * Runs one more step, with the token that is next on the GPU.
   *
   * @param {GpuBuffers} buffers @param {Draws | null} draws
   * @param {number} place of its row among those that are not read
   */
  async #launch(buffers, draws, place) {
    const commands = this.#model.device.createCommandEncoder();
    await buffers.step(this.#ahead.length, commands);
    this.#frontier++;
    const read = this.#read(buffers, draws, place, commands);
    read.catch(() => {}); // it may be forgotten
    return { read };
  }

  /**
   * What a read gives behind which nothing runs. Chromium looks every 2 ms for what the GPU has done, and whenever
   * something is submitted: so nothing is, again and again, where the wait is short.
   *
   * @param {Promise<Read>} read
   */
  async #awaitRow(read) {
    const start = performance.now();
    const isAsking = this.#slow++ % RETRY === 0;
    let isDone = false;
    const done = read.finally(() => (isDone = true));
    done.catch(() => {}); // whoever waits below is told
    for (let now = start, last = start; !isDone && isAsking && now - start < LONGEST_MS; ) {
      await turn();
      now = performance.now();
      if (now - last < POLL_MS) continue;
      this.#model.device.queue.submit([]);
      last = now;
    }
    const found = await done;
    if (performance.now() - start < LONGEST_MS) this.#slow = 0;
    return found;
  }

  /** Takes what a run gave. @param {Read} read @param {number} end */
  #take({ guess, row }, end) {
    [this.#guess, this.#end] = [guess, end];
    return row;
  }

  /**
   * Chooses the token after the row that was computed last, and reads both; the next run may begin meanwhile.
   *
   * @param {GpuBuffers} buffers @param {Draws | null} draws null: the best one @param {number} place
   * @param {GPUCommandEncoder} [commands] that compute the row, where they are not submitted yet
   * @returns {Promise<Read>}
   */
  async #read({ logits, token, group }, draws, place, commands = this.#model.device.createCommandEncoder()) {
    const { device, decoder, size, next, type } = this.#model;
    const bytes = size * decoder.vocabulary;
    const room = HEAD + 16 * Math.ceil(bytes / 16);
    const staging = this.#staging.pop() ?? device.createBuffer({ size: room, usage: READ_USAGE });
    if (group) {
      next.choose(draws, place);
      next.encode(commands, group);
      commands.copyBufferToBuffer(token.buffer, 0, staging, 0, 4);
    }
    commands.copyBufferToBuffer(logits.buffer, 0, staging, HEAD, 4 * Math.ceil(bytes / 4));
    device.queue.submit([commands.finish()]);
    await staging.mapAsync(1); // GPUMapMode.READ
    const mapped = staging.getMappedRange();
    const guess = group ? new Int32Array(mapped, 0, 1)[0] : -1;
    const row = new Float32Array(decoder.vocabulary);
    if (type === "float16") widen(new Uint16Array(mapped, HEAD, decoder.vocabulary), row);
    else row.set(new Float32Array(mapped, HEAD, decoder.vocabulary));
    staging.unmap();
    if (this.#isClosed) staging.destroy();
    else this.#staging.push(staging);
    return { guess, row };
  }

  /** Copies of the keys and values of the tokens from `start` to before `stop`, each head of a tensor by itself; then states. */
  async read(/** @type {number} */ start, /** @type {number} */ stop) {
    const { device } = this.#model;
    const pieces = this.#pieces(start, stop);
    const total = pieces.reduce((sum, [, , length]) => sum + length, 0);
    const staging = device.createBuffer({ size: Math.max(total, 4), usage: READ_USAGE });
    try {
      const commands = device.createCommandEncoder();
      let place = 0;
      for (const [buffer, offset, length] of pieces) {
        commands.copyBufferToBuffer(buffer, offset, staging, place, length);
        place += length;
      }
      device.queue.submit([commands.finish()]);
      await staging.mapAsync(1);
      const all = new Uint8Array(staging.getMappedRange().slice(0));
      place = 0;
      return pieces.map(([, , length]) => all.subarray(place, (place += length)));
    } finally {
      staging.destroy();
    }
  }

  /** @param {Uint8Array[]} pieces as read() gave them @param {number} start @param {number} stop */
  async write(pieces, start, stop) {
    this.#forget();
    this.#held().states?.replaced(stop);
    this.#pieces(start, stop).forEach(([buffer, offset], place) => {
      const { buffer: bytes, byteOffset, byteLength } = pieces[place];
      this.#model.device.queue.writeBuffer(buffer, offset, bytes, byteOffset, byteLength);
    });
  }

  close() {
    this.#forget();
    if (this.#buffers) this.#model.give(this.#buffers);
    this.#buffers = null;
    this.#isClosed = true;
    for (const staging of this.#staging) staging.destroy();
    this.#staging = [];
  }

  /** Forgets the latest row and what runs ahead of it. */
  #forget() {
    this.#ahead = [];
    [this.#end, this.#guess, this.#frontier] = [-1, -1, -1];
  }

  #held() {
    if (this.#buffers) return this.#buffers;
    throw new DeviceError("this sequence holds no KV cache: a defect of this library, please report it.");
  }

  /** @param {number} start @param {number} stop @returns {[GPUBuffer, offset: number, length: number][]} */
  #pieces(start, stop) {
    const { size, decoder } = this.#model;
    const { capacity, kv, states } = this.#held();
    const pieces = decoder.layers.flatMap(({ kvHeads, headDim }, layer) =>
      ["key", "value"].flatMap((part) => {
        const buffer = /** @type {OnGpu} */ (kv.get(`${layer}.${part}`)).buffer;
        return Array.from({ length: kvHeads }, (_, head) => /** @type {[GPUBuffer, number, number]} */ (
          [buffer, size * (head * capacity + start) * headDim, size * (stop - start) * headDim]));
      }),
    );
    for (const { buffer, bytes } of states?.past ?? []) pieces.push([buffer, 0, bytes]);
    return pieces;
  }
}
