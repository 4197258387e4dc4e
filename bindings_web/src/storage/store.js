// What this site keeps of models: files by their sha256, shared between models, and a record of each model.

import { folderOf } from "../package/address.js";
import { isRight } from "./checks.js";
import { openPlace } from "./opfs.js";
import { PackageError } from "../errors.js";
import { ifFree, locked } from "./locks.js";
import { readManifest, storedNames } from "../package/manifest.js";
import { listed, OLD, readRecord } from "./model_record.js";
import { spaceOfSite } from "./quota.js";
import { roomFor } from "./room_for.js";
import { hex, storedName } from "./stored_name.js";
import { throttled } from "../worker/throttle.js";

/**
 * @typedef {import("./opfs.js").Place} Place
 * @typedef {import("./download.js").Wanted} Wanted
 * @typedef {import("./download.js").OnProgress} OnProgress
 * @typedef {import("./download.js").Progress} Progress
 * @typedef {import("./hashes.js").Sha256} Sha256
 * @typedef {import("./download.js").Means} Means
 * @typedef {import("./model_record.js").Model} Model
 * @typedef {import("./model_record.js").Listed} Listed
 */

/** Files of models in this site's folder. Works only in a worker. Several may be open at once, in several tabs. */
export class Store {
  /** @type {Place} */ #place;
  /** @type {Means} */ #means;
  #isUpdating = false;

  /**
   * Use Store.open().
   * @param {Place} place
   * @param {Means} means
   */
  constructor(place, means) {
    this.#place = place;
    this.#means = means;
  }

  /**
   * sha256: that of @noble/hashes, or one that is used alike; pause: ms before a failed request is made again, doubled
   * each time; patience: ms without a byte after which a request has failed. Where nothing can be stored (private
   * windows of some browsers) files are kept in memory until the worker ends, and the console says so.
   * @param {{sha256: Sha256, pause?: number, patience?: number}} means
   */
  static async open({ sha256, pause = 500, patience = 60_000 }) {
    if (typeof WorkerGlobalScope === "undefined") throw new TypeError("Store.open() works only in a worker");
    const { place, reason } = await openPlace();
    if (!place.isDisk) console.warn(`embedllm: models are kept in memory only, nothing can be stored here (${reason})`);
    await navigator.storage?.persist?.().catch(() => false); // pages have it, workers of most browsers do not
    return new Store(place, { sha256, pause, patience });
  }

  /** Whether what is downloaded is here the next time. */
  get isPersistent() {
    return this.#place.isDisk;
  }

  /**
   * A file whose sha256 was checked: the stored one, or it is downloaded, in place of a damaged one too. Reading it locks
   * nothing.
   *
   * isSuspect: it is hashed, however lately it was (checks.js). Tabs that want the same file wait for the one
   * that downloads it. Throws PackageError or the signal's reason.
   * @param {Wanted} wanted
   * @param {{onProgress?: OnProgress, signal?: AbortSignal, isSuspect?: boolean}} [options]
   * @returns {Promise<File | Blob>}
   */
  async file(wanted, { onProgress, signal, isSuspect } = {}) {
    const tellSometimes = throttled(onProgress);
    /** @type {Progress["phase"]} */
    let phase = "stored";
    const tell = (/** @type {Progress} */ progress) => {
      if (progress.phase === "download") phase = "download";
      tellSometimes(progress);
    };
    const lock = `embedllm ${storedName(wanted)}`;
    const others = new BroadcastChannel(lock);
    others.onmessage = ({ data }) => tell({ ...data, file: wanted.name });
    const telling = (/** @type {Progress} */ progress) => {
      tell(progress);
      others.postMessage(progress);
    };
    try {
      const make = async () => {
        const made = await this.#stored(wanted, isSuspect); // by another tab, in the meantime
        if (made) return made;
        const { renew } = await import("./renew.js"); // of no use where all is stored
        const needRoom = () => this.needRoom([wanted]);
        const removeOld = () => this.#removeOld(true);
        return renew(wanted, { ...this.#means, place: this.#place, needRoom, removeOld, signal, onProgress: telling });
      };
      const file = (await this.#stored(wanted, isSuspect)) ?? (await locked(lock, signal, make));
      if (!file) throw new PackageError(`'${wanted.name}' was removed while it was loaded. Load the model again.`);
      if (this.#isUpdating) await this.#removeOld(false);
      onProgress?.({ file: wanted.name, loaded: wanted.bytes, total: wanted.bytes, phase });
      return file;
    } finally {
      others.close();
    }
  }

  /**
   * Throws PackageError when what is not stored of these files has no room, not even without files of before an update.
   * @param {Wanted[]} files
   */
  async needRoom(files) {
    if (!this.#place.isDisk) return;
    const sizes = await this.#place.sizes();
    const missing = files.filter((file) => !storedNames(file).some((name) => sizes.get(name) === file.bytes));
    if (!missing.length) return;
    const { checkRoom } = await import("./no_room.js");
    await checkRoom(missing, sizes).catch(async (error) => {
      if (!(await this.#removeOld(true))) throw error;
      await checkRoom(missing, sizes);
    });
  }

  /**
   * The record of a model, by its address.
   * @param {string} url
   * @returns {Promise<Model | null>}
   */
  async model(url) {
    const text = await this.#place.record(this.#key(url));
    return text === null ? null : readRecord(text);
  }

  /**
   * Writes down what a model consists of now. Files of its manifest before are removed, once it can be used, if no model
   * lists them.
   * @param {string} url
   * @param {string} manifest  its text
   */
  keep(url, manifest) {
    return locked("embedllm models", undefined, async () => {
      const before = (await this.model(url + OLD)) ?? (await this.model(url));
      this.#isUpdating = !!before && before.manifest !== manifest;
      if (this.#isUpdating) return (await import("./update.js")).writeUpdate(this, url, manifest);
      return this.write({ used: [], ...before, url: before?.url ?? url, manifest, lastUsed: Date.now() });
    });
  }

  /**
   * Writes down that a file of a model is used, unless another tab knows a later manifest of it.
   * @param {string} url
   * @param {string} manifest  the text of the one that lists the file
   * @param {string} name
   */
  use(url, manifest, name) {
    return locked("embedllm models", undefined, async () => {
      const before = await this.model(url);
      if (before && (before.manifest !== manifest || before.used.includes(name))) return;
      await this.write({ url, manifest, used: [...(before?.used ?? []), name], lastUsed: Date.now() });
    });
  }

  /**
   * The models of which something is stored, last used first.
   * @returns {Promise<Listed[]>}
   */
  async list() {
    const sizes = await this.#place.sizes();
    const all = (await this.models()).map((model) => listed(model, sizes)).filter(({ bytes, url }) => bytes && !url.endsWith(OLD));
    return all.sort((a, b) => b.lastUsed - a.lastUsed);
  }

  /**
   * Forgets a model, and removes those of its files that no other model lists. Whether it was there.
   * @param {string | URL} url
   */
  async remove(url) {
    const folder = folderOf(url);
    return locked("embedllm models", undefined, async () => {
      const known = (await this.#place.record(this.#key(folder))) !== null;
      for (const each of [folder, folder + OLD]) await this.erase(each);
      await this.sweep();
      return known;
    });
  }

  /**
   * Bytes: of all models, of all that this site stores, and that it may store; the latter two where the browser tells.
   * isPersistent: the browser removes nothing without being asked to.
   */
  async usage() {
    const { usage: site, quota } = await spaceOfSite();
    const models = [...(await this.#place.sizes()).values()].reduce((sum, bytes) => sum + bytes, 0);
    const isPersistent = this.#place.isDisk && ((await navigator.storage?.persisted?.()) ?? false);
    return { models, site, quota, isPersistent };
  }

  /** @param {boolean} any */
  async #removeOld(any) {
    return (await import("./update.js")).removeOld(this, any);
  }

  // What update.js asks for

  /** @param {Model} model */
  async isWhole(model) {
    return listed(model, await this.#place.sizes()).complete;
  }

  /** @param {string} url */
  erase(url) {
    return this.#place.erase(this.#key(url));
  }

  /** @param {Model} model */
  async write(model) {
    const text = JSON.stringify(model);
    await roomFor("what is known of the model", () => text.length, () => this.#place.write(this.#key(model.url), text));
  }

  /**
   * The stored file, if it can be used as it is.
   * @param {Wanted} wanted
   * @param {boolean} [isSuspect]
   */
  async #stored(wanted, isSuspect) {
    if (isSuspect) return null;
    for (const name of storedNames(wanted)) {
      const file = await this.#place.file(name);
      if (file?.size === wanted.bytes && (await isRight(file, name, wanted, this.#place))) return file;
    }
    return null;
  }

  /** Removes the files that no model lists, but not those that are being written. */
  async sweep() {
    const kept = new Set();
    for (const { manifest } of await this.models()) {
      for (const entry of Object.values(readManifest(manifest, "a stored manifest").files)) {
        for (const name of storedNames(entry)) kept.add(name);
      }
    }
    for (const name of (await this.#place.sizes()).keys()) {
      const whole = name.replace(/\.part$/, "");
      if (!kept.has(whole)) await ifFree(`embedllm ${whole}`, () => this.#place.remove(whole));
    }
  }

  async models() {
    const models = (await this.#place.records()).map(([, text]) => readRecord(text));
    return models.filter((model) => model !== null);
  }

  /** @param {string} url */
  #key(url) {
    const hash = this.#means.sha256.create();
    hash.update(new TextEncoder().encode(url));
    return hex(hash.digest()).slice(0, 32);
  }
}
