// Which models this browser's GPU was found to compute rightly, so that a reload does not try them again.

import { recall, remember } from "./remembered.js";

/** @typedef {{key: string, at: number}} Right at: when it was found, in ms since 1970 */

const FILE = "embedllm-tried.json";
const KEPT = 16; // models, the latest
const LASTS_MS = 30 * 24 * 3600 * 1000; // then a model is tried again: no browser tells that a driver is another one
const TRIAL = 1; // counted up when something else is tried, or other code computes it

/** What a trial holds for. @param {(string | boolean | undefined)[]} about the model, how it runs, GPU, runtime and browser */
export function trialKey(...about) {
  return [TRIAL, ...about].join("|");
}

/** @param {string} key */
export async function wasRight(key) {
  return (await known()).some((right) => right.key === key && Date.now() < right.at + LASTS_MS);
}

/** @param {string} key */
export async function noteRight(key) {
  await remember(FILE, [...(await others(key)).slice(1 - KEPT), { key, at: Date.now() }]);
}

/** Has a model tried again. @param {string} key */
export async function forget(key) {
  await remember(FILE, await others(key));
}

/** @param {string} key */
async function others(key) {
  return (await known()).filter((right) => right.key !== key);
}

/** @returns {Promise<Right[]>} */
async function known() {
  return (await recall(FILE)) ?? [];
}
