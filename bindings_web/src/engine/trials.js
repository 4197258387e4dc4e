// Which of GPU and CPU answers sooner: what pages of this site have tried (page/trial.js), for "auto" to go by.

import { recall, remember } from "./remembered.js";

/**
 * @import { Device } from "./engine.js"
 * @typedef {{webgpu: number, wasm: number | null}} Times seconds that a reply would take; wasm: null where it could not
 *   win, or did not run
 * @typedef {{environment: string, weights: string, leastStep_s: number}} Untried environment: what the times hold for;
 *   weights: the hash of their file; leastStep_s: no processor makes a step sooner
 * @typedef {{order: Device[], slower: Device[], untried: Untried | null}} Order slower: the GPU, with the reason, where
 *   "wasm" comes before it
 */

const FILE = "embedllm-trials.json";
const MARGIN = 0.9; // of the GPU's time: a trial is not exact, and the GPU leaves the cores to the page
const READ_BYTES_S = 50e9; // more than the cores of a PC read; a step reads all weights

/**
 * The order in which devices are taken.
 *
 * @param {Device[]} devices of "auto" @param {{weights: string, floatBytes: number, threads: number}} model
 * @returns {Promise<Order>}
 */
export async function orderByTrials(devices, { weights, floatBytes, threads }) {
  const of = (/** @type {string} */ wanted) => devices.find(({ name, available }) => name === wanted && available);
  const [gpu, cpu] = [of("webgpu"), of("wasm")];
  if (!gpu || !cpu) return { order: devices, slower: [], untried: null };
  const environment = [gpu.description, gpu.backend, cpu.description, threads, navigator.userAgent].join("|");
  const found = await recall(FILE);
  /** @type {Times | undefined} */
  const times = found?.environment === environment ? found.times[weights] : undefined;
  const untried = times ? null : { environment, weights, leastStep_s: floatBytes / READ_BYTES_S };
  if (!times?.wasm || times.wasm > MARGIN * times.webgpu) return { order: devices, slower: [], untried };
  const reason = `in this browser's trial of the model a reply took ${times.webgpu.toFixed(2)} s, and ${times.wasm.toFixed(2)} s on 'wasm'`;
  const slower = { ...gpu, available: false, reason, remedy: "ask for 'webgpu' by its name to use it all the same" };
  return { order: [cpu, ...devices.filter((device) => device !== cpu)], slower: [slower], untried };
}

/** Forgets all times of other environments. @param {Untried & {times: Times}} trial */
export async function rememberTrial({ environment, weights, times }) {
  const found = await recall(FILE);
  const before = found?.environment === environment ? found.times : {};
  await remember(FILE, { environment, times: { ...before, [weights]: times } });
}
