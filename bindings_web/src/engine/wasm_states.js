// The states of recurrent sequences on the CPU, in ONNX Runtime's own memory. Loaded for models that have some.

import { FLOAT } from "./ort_calls.js";
import { RecurrentStates } from "./recurrent_states.js";

/**
 * @import { Decoder } from "./model_shape.js"
 * @import { Held, OrtCalls } from "./ort_calls.js"
 * @typedef {Held & {length: number}} State length: in bytes
 * @typedef {RecurrentStates<State>} HostStates
 */

const PLACES = 2;

/** Those of a new sequence. @param {OrtCalls} calls @param {Decoder} decoder @returns {HostStates} */
export function hostStates(calls, decoder) {
  const view = (/** @type {State} */ { pointer, length }) => calls.bytes(pointer, length);
  return new RecurrentStates({
    bytesPerValue: 4,
    place: (dims, length) => ({ ...calls.place(FLOAT, dims, length), length }),
    copy: (from, to) => from.forEach((state, at) => view(to[at]).set(view(state))),
    clear: (states) => states.forEach((state) => view(state).fill(0)),
    free: (states) => calls.release(states),
  }, decoder, PLACES);
}
