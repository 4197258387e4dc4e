// A model's folder on a server, opened: its manifest and texts at once, graphs and weights when they are asked for.

import { addressIn, folderOf } from "./address.js";
import { PackageError } from "../errors.js";
import { OLD } from "../storage/model_record.js";
import { isText, isWeights, MANIFEST, readManifest } from "./manifest.js";

/**
 * @typedef {import("../storage/store.js").Store} Store
 * @typedef {import("../storage/download.js").OnProgress} OnProgress
 * @typedef {import("./manifest.js").Manifest} Manifest
 * @typedef {{onProgress?: OnProgress, signal?: AbortSignal}} Options
 */

const PATIENCE_MS = 10_000; // for the manifest of a model that is stored

/** An opened folder. See openPackage. */
export class Package {
  #store;
  #options;
  #text;

  /**
   * @param {Store} store
   * @param {string} url
   * @param {{manifest: Manifest, text: string, isOffline: boolean}} found
   * @param {Options} options
   */
  constructor(store, url, { manifest, text, isOffline }, options) {
    this.#store = store;
    this.#options = options;
    this.#text = text;
    this.url = url; // of the folder, whole, with a slash at its end
    this.manifest = manifest;
    this.isOffline = isOffline; // the stored manifest is used, because the server's could not be
    this.isStored = store.isPersistent; // what is downloaded is here the next time
    /** @type {Map<string, string>} */
    this.texts = new Map([[MANIFEST, text]]); // the manifest and all that it lists but graphs, weights and binaries
  }

  /**
   * A listed file whose sha256 was checked, downloaded if it is not stored. Reading it locks nothing.
   * @param {string} name
   * @param {Options & {isSuspect?: boolean}} [options]  where they differ from those of openPackage; isSuspect: it is hashed,
   *   however lately it was
   * @returns {Promise<File | Blob>}
   */
  async file(name, options = {}) {
    const wanted = this.#wanted(name);
    await this.#store.use(this.url, this.#text, name); // before the download, so that nobody removes the file
    return this.#store.file(wanted, { ...this.#options, ...options });
  }

  /** Reads the texts. Called once, by openPackage. */
  async read() {
    const names = Object.keys(this.manifest.files);
    const texts = names.filter((name) => isText(this.manifest, name));
    const needed = [...texts, ...names.filter(isWeights)];
    await this.#store.keep(this.url, this.#text); // first, it may make room: what was there before an update
    await this.#store.needRoom(needed.map((name) => this.#wanted(name))); // now, not after a long download
    const files = await Promise.all(texts.map((name) => this.#store.file(this.#wanted(name), this.#options)));
    for (const [at, name] of texts.entries()) this.texts.set(name, utf8(name, await files[at].arrayBuffer()));
  }

  /** @param {string} name */
  #wanted(name) {
    const { files, shards = {} } = this.manifest;
    if (!Object.hasOwn(files, name)) {
      throw new PackageError(`the model at ${this.url} has no file '${name}'; it has ${Object.keys(files).join(", ")}`);
    }
    const sources = Object.hasOwn(shards, name) ? shards[name] : [{ file: name, ...files[name] }];
    return { name, ...files[name], sources: sources.map((part) => ({ ...part, url: addressIn(this.url, part.file) })) };
  }
}

/**
 * Opens the folder at an address, which `embedllm export` wrote: its manifest from the server, so that an update is
 * noticed, or the stored one while the server cannot be reached; then its texts.
 *
 * url: of the folder, or of its manifest; a query is kept for every file. Throws PackageError or the signal's reason.
 * @param {string | URL} url
 * @param {{store: Store} & Options} options
 * @returns {Promise<Package>}
 */
export async function openPackage(url, { store, ...options }) {
  const folder = folderOf(url);
  const opened = new Package(store, folder, await findManifest(folder, store, options.signal), options);
  await opened.read();
  return opened;
}

/**
 * @param {string} folder
 * @param {Store} store
 * @param {AbortSignal} [signal]
 * @returns {Promise<{manifest: Manifest, text: string, isOffline: boolean}>}
 */
async function findManifest(folder, store, signal) {
  const stored = (await store.model(folder + OLD)) ?? (await store.model(folder)); // an update may be in parts
  try {
    const text = await fetchManifest(folder, stored !== null, signal);
    return { text, manifest: readManifest(text, addressIn(folder, MANIFEST)), isOffline: false };
  } catch (error) {
    signal?.throwIfAborted();
    if (!(error instanceof PackageError) || stored === null) throw error;
    if (navigator.onLine) console.warn(`embedllm: using the stored model, because ${error.message}`);
    return { text: stored.manifest, manifest: readManifest(stored.manifest, "the stored manifest"), isOffline: true };
  }
}

/**
 * @param {string} folder
 * @param {boolean} isHasty  a server that does not answer is given up
 * @param {AbortSignal} [signal]
 */
async function fetchManifest(folder, isHasty, signal) {
  const url = addressIn(folder, MANIFEST);
  const signals = [...(signal ? [signal] : []), ...(isHasty ? [AbortSignal.timeout(PATIENCE_MS)] : [])];
  let status;
  try {
    const response = await fetch(url, { cache: "no-cache", signal: AbortSignal.any(signals) });
    if (response.ok) return utf8(url, await response.arrayBuffer());
    status = `it answered with status ${response.status} ${response.statusText}`.trimEnd();
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof PackageError) throw error;
    status = String(error);
  }
  throw new PackageError(
    `cannot read '${url}' (${status}). Expected a folder written by embedllm export, on a server that this page may ` +
      "read from (of another origin: with CORS headers).",
  );
}

/**
 * @param {string} name
 * @param {ArrayBuffer} bytes
 */
function utf8(name, bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new PackageError(`'${name}' is no UTF-8 text. Export the folder again.`);
  }
}
