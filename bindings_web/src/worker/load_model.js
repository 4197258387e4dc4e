// Loads a model in a worker: its files, a device, a tokenizer. What both engines, Python's and JavaScript's, stand on.

import { candidates, failure } from "../engine/device_selection.js";
import { Decoder } from "../engine/model_shape.js";
import { devices as found } from "../engine/devices.js";
import { openEngine } from "../engine/open_engine.js";
import { DeviceError } from "../errors.js";
import { checkedUrls, libraryUrl, loadLibrary } from "../libraries.js";
import { WEIGHTS } from "../package/manifest.js";
import { openPackage } from "../package/package.js";
import { dateOf } from "../storage/checks.js";
import { Store } from "../storage/store.js";
import { TextCodec } from "../tokenizer/tokenizer.js";

/**
 * @import { Device, Engine } from "../engine/engine.js"
 * @import { Urls } from "../libraries.js"
 * @import { Package } from "../package/package.js"
 * @typedef {{device?: string | string[], threads?: number, context?: number | null, onProgress?: import("../storage/download.js").OnProgress,
 *   signal?: AbortSignal, urls?: Urls}} Options device: a name of devices(), "auto", or names that are tried in order;
 *   threads: for the CPU, 0 takes as many as ONNX Runtime does; one where the page is not cross-origin isolated;
 *   context: most tokens of a prompt and its reply, 2 or more; null: all that the folder holds
 * @typedef {{texts: Map<string, string>, manifest: Package["manifest"], package: Package, device: Device,
 *   refused: Device[], engine: Engine, tokenizer: TextCodec, kind: import("../storage/saved_conversations.js").Kind,
 *   graph: Package["manifest"]["graphs"][number], base: string, threads: number, sha256: (bytes: Uint8Array) => Uint8Array,
 *   untried: import("../engine/trials.js").Untried | null}} Loaded
 *   refused: those passed over, with the reasons; untried: what a page may try when nothing is asked; kind: of its KV caches; base: URL of onnxruntime-web's dist folder
 */

/** Most that the matrices may have as floats: with what ONNX Runtime makes of them, half of a wasm memory's 4 GB. */
const MOST_FLOAT_BYTES = 1 << 30;
const UNPACKED = "wasm-float32";
const CAPPED = "attention has logit soft-capping, which WebGPU's leaves out";
const SHARED = "its layers share keys and values, of which onnxruntime-web 1.30 makes NaN on the CPU";

const TRIED_CONTEXT = 128; // tokens; a trial has fewer
/** Of a device's memory, that the floats of a trial may take: they are a second copy, which nobody asked for. */
const TRIED_SHARE = 1 / 16;
const USUAL_MEMORY_GIB = 4; // where the browser does not say

/** What this browser offers, and why the rest is not available. @returns {Promise<Device[]>} */
export async function devices() {
  return found();
}

/**
 * The folder at an address, on the first device of a wish that is there, suits it and opens.
 *
 * A device that was asked for alone never falls back to another. Throws PackageError, DeviceUnavailable, or the
 * signal's reason.
 *
 * @param {string} url @param {Options} [options] @returns {Promise<Loaded>}
 */
export async function load(url, { device: wish = "auto", threads = 0, context = null, onProgress, signal, urls: places } = {}) {
  const urls = checkedUrls(places, globalThis.location?.href);
  if (!Number.isInteger(threads) || threads < 0) throw new RangeError(`threads is ${threads}; expected 0 or more.`);
  const wished = candidates(await found(), wish);
  const [{ sha256 }, library] = await Promise.all([loadLibrary("hashes", urls), loadLibrary("tokenizers", urls)]);
  const opened = await openPackage(url, { store: await Store.open({ sha256 }), onProgress, signal });
  const tokenizer = new TextCodec(library, opened.texts); // before the weights
  const decoder = new Decoder(opened.manifest);
  if (context !== null) decoder.limitContext(context);
  const base = libraryUrl("onnxruntime", urls);
  const inVain = new AbortController();
  const ending = AbortSignal.any([inVain.signal, ...(signal ? [signal] : [])]);
  /** @type {Promise<File | Blob> | undefined} */
  let download;
  const weightsOf = () => {
    download ??= opened.file(WEIGHTS, { signal: ending });
    download.catch(() => {}); // who waits for them is told
    return download;
  };
  let mayBeDamaged = true; // the weights, until they were hashed for a session that could not be made
  /** @type {Device[]} */
  const refused = [];
  const { order, slower, untried } = await ordered(wish, wished, opened, decoder, threads);
  for (const device of order) {
    const graph = device.available ? await graphFor(device, opened, decoder, { base, urls, whileProbing: weightsOf }) : device;
    if ("reason" in graph) {
      refused.push({ ...device, available: false, reason: graph.reason, remedy: graph.remedy });
      continue;
    }
    const activations = graph.activations === "float16" ? /** @type {const} */ ("float16") : /** @type {const} */ ("float32");
    const [ofWeights, ofGraph] = [WEIGHTS, graph.file].map((name) => opened.manifest.files[name].sha256);
    const parts = { weights: await weightsOf(), graph: await opened.file(graph.file), activations, decoder, hash: `${ofGraph} ${ofWeights}` };
    onProgress?.({ file: graph.file, loaded: 0, total: 1, phase: "compile" });
    signal?.throwIfAborted();
    try {
      const engine = await openEngine(device, parts, { base, threads }).catch(async (error) => {
        if (!mayBeDamaged) throw error;
        mayBeDamaged = false;
        const weights = await opened.file(WEIGHTS, { signal: ending, isSuspect: true });
        if (dateOf(weights) === dateOf(parts.weights)) throw error; // they are not at fault
        download = Promise.resolve(weights);
        return openEngine(device, { ...parts, weights }, { base, threads });
      });
      onProgress?.({ file: graph.file, loaded: 1, total: 1, phase: "compile" });
      const { texts, manifest } = opened;
      const of = { device: device.name, type: activations, context: engine.context };
      const kind = { weights: ofWeights, graph: ofGraph, ...of };
      const isCpu = device.name === "wasm";
      const passed = isCpu ? [...refused, ...slower] : refused;
      const loaded = { texts, manifest, package: opened, device, refused: passed, engine, tokenizer, kind };
      return { ...loaded, graph, base, threads, sha256, untried: isCpu ? null : untried };
    } catch (error) {
      if (!(error instanceof DeviceError) || wished.length === 1) throw error;
      refused.push({ ...device, available: false, reason: error.message, remedy: "" });
    }
  }
  inVain.abort();
  throw failure(refused);
}

/**
 * Devices in the order in which they are taken: where nothing was asked for, that of a trial.
 *
 * @param {string | string[]} wish @param {Device[]} wished @param {Package} opened @param {Decoder} decoder
 * @param {number} threads @returns {Promise<import("../engine/trials.js").Order>}
 */
async function ordered(wish, wished, { manifest }, { context, floatBytes }, threads) {
  const { deviceMemory = USUAL_MEMORY_GIB } = /** @type {{deviceMemory?: number}} */ (navigator);
  const mostBytes = Math.min(MOST_FLOAT_BYTES, deviceMemory * TRIED_SHARE * 2 ** 30);
  const isSuitable = context >= TRIED_CONTEXT && floatBytes <= mostBytes && manifest.graphs.some(({ variant }) => variant === UNPACKED);
  const isOpen = String(wish) === "auto" && wished.some(({ name, available }) => name === "webgpu" && available);
  if (!isSuitable || !isOpen) return { order: wished, slower: [], untried: null };
  const { orderByTrials } = await import("../engine/trials.js");
  return orderByTrials(wished, { weights: manifest.files[WEIGHTS].sha256, floatBytes, threads });
}

/**
 * The first graph of a folder that the device runs, and runs rightly, or why there is none.
 *
 * @param {Device} device @param {Package} opened @param {Decoder} decoder
 * @param {{base: string, urls?: Urls, whileProbing: () => unknown}} options whileProbing: called before a probe, of a
 *   device for which there is a graph
 * @returns {Promise<Package["manifest"]["graphs"][number] | {reason: string, remedy: string}>}
 */
async function graphFor(device, { manifest }, decoder, { base, urls, whileProbing }) {
  let variants = device.variants ?? [];
  const graph = () => {
    const there = variants.map((variant) => manifest.graphs.find((one) => one.variant === variant && !one.kv));
    return there.find((one) => one !== undefined);
  };
  if (device.name === "wasm") {
    if (decoder.sharesKv) return { reason: SHARED, remedy: "use 'webgpu'" };
    variants = variants.filter((name) => name !== UNPACKED || decoder.floatBytes <= MOST_FLOAT_BYTES);
  } else {
    if (decoder.capsScores) return { reason: CAPPED, remedy: "use 'wasm'" };
    if (!graph()) return noGraph(manifest, variants);
    whileProbing();
    const { probe } = await import("../engine/probe.js");
    const outcome = await probe(device, { base, url: libraryUrl("probe", urls) });
    if (!outcome.variant) return { reason: outcome.reason, remedy: "use another device" };
    variants = variants.slice(variants.indexOf(outcome.variant)); // float32 is right where float16 is
  }
  return graph() ?? noGraph(manifest, variants);
}

/** @param {Package["manifest"]} manifest @param {string[]} variants that a device runs @returns {{reason: string, remedy: string}} */
function noGraph(manifest, variants) {
  const latent = manifest.graphs.find(({ variant, kv }) => kv && variants.includes(variant))?.variant;
  return {
    reason: latent
      ? `the graph '${latent}' keeps latents (MLA), which pages do not run`
      : `the folder has no graph '${variants.join("' or '")}'`,
    remedy: latent === variants[0]
      ? "use the device 'webgpu', or 'cpu' of a desktop"
      : `add ${latent ? `'${variants[0]}'` : "it"}: embedllm graph FOLDER --variant ${variants[0]}`,
  };
}
