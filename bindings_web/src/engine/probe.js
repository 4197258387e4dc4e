// Whether a GPU computes rightly: a tiny model with known answers, run by the same engine; remembered in this browser.
//
// The model and its answers are those of the desktop (backends/probe/model, made by tools/make_probe.py).

import { reason } from "../errors.js";
import { WEIGHTS } from "../package/manifest.js";
import { Decoder } from "./model_shape.js";
import { openEngine } from "./open_engine.js";
import { recall, remember } from "./remembered.js";

/**
 * @import { Device, Engine } from "./engine.js"
 * @typedef {{variant: string, reason: string}} Outcome variant: of the graphs that it computes rightly, the best; empty
 *   when it computes none, and then the reason says why
 */

const FILE = "embedllm-probes.json";
const LIMIT_MS = 120_000; // a software adapter compiles for 15 s
/** The largest difference of a logit that is no fault; the logits go up to 3.2 (docs/devices.md#probes). */
const TOLERANCES = /** @type {Record<string, number>} */ ({ "gpu-float32": 0.02, "webgpu-float16": 0.06 });

/**
 * @param {Device} device @param {{base: string, url: string}} options url: of the folder of the tiny model;
 *   base: of onnxruntime-web
 * @returns {Promise<Outcome>}
 */
export async function probe(device, { base, url }) {
  const key = [device.name, device.description, device.backend, device.variants, navigator.userAgent].join("|");
  /** @type {Record<string, Outcome>} */
  const remembered = (await recall(FILE)) ?? {};
  if (remembered[key]?.variant) return remembered[key];
  const outcome = await withinTime(run(device, { base, url }));
  if (!outcome) return { variant: "", reason: `the probe did not end within ${LIMIT_MS / 1000} s` };
  if (outcome.variant) await remember(FILE, { ...remembered, [key]: outcome }); // what failed is tried again the next time
  return outcome;
}

/** @param {Device} device @param {{base: string, url: string}} options @returns {Promise<Outcome>} */
async function run(device, { base, url }) {
  const troubles = [];
  for (const variant of device.variants ?? []) {
    try {
      const off = await difference(device, variant, { base, url });
      if (off <= TOLERANCES[variant]) return { variant, reason: troubles.join("; ") };
      troubles.push(`'${variant}': the probe's logits are off by ${off.toPrecision(3)}`);
    } catch (error) {
      troubles.push(`'${variant}': ${reason(error)}`);
    }
  }
  return { variant: "", reason: `the probe failed: ${troubles.join("; ")}` };
}

/** The largest difference of a logit. @param {Device} device @param {string} variant @param {{base: string, url: string}} options */
async function difference(device, variant, { base, url }) {
  const manifest = await (await fetched(url, "embedllm.json")).json();
  const { steps, logits } = await (await fetched(url, "answers.json")).json();
  const graph = manifest.graphs.find((/** @type {{variant: string}} */ one) => one.variant === variant);
  const parts = {
    graph: await (await fetched(url, graph.file)).blob(),
    weights: await (await fetched(url, WEIGHTS)).blob(),
    activations: graph.activations,
    decoder: new Decoder(manifest),
  };
  const engine = await openEngine(device, parts, { base, threads: 1 });
  try {
    return await answered(engine, steps, logits);
  } finally {
    engine.close();
  }
}

/** @param {Engine} engine @param {[number, number[]][]} steps @param {number[][]} logits expected after each */
async function answered(engine, steps, logits) {
  const session = engine.open();
  let most = 0;
  for (const [step, [position, tokens]] of steps.entries()) {
    if (position !== session.position) session.rewind(position);
    const found = (await session.feed(tokens)).values(logits[step].map((_, token) => token));
    for (const [token, logit] of logits[step].entries()) {
      const off = Math.abs(found[token] - logit);
      if (!(off <= most)) most = off; // NaN too
    }
  }
  session.close();
  return most;
}

/** @param {string} url of a folder @param {string} name */
async function fetched(url, name) {
  const response = await fetch(new URL(name, url));
  if (!response.ok) throw new Error(`'${response.url}' answered with status ${response.status}`);
  return response;
}

/** What a promise gives, undefined when it takes too long. @template T @param {Promise<T>} work */
async function withinTime(work) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const late = new Promise((resolve) => void (timer = setTimeout(resolve, LIMIT_MS)));
  try {
    return /** @type {T | undefined} */ (await Promise.race([work, late]));
  } finally {
    clearTimeout(timer);
  }
}
