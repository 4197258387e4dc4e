// One file from the network into a Part: resumed where it stopped, checked by its hash, tried again where it may help.

import { PackageError } from "./errors.js";

/**
 * @typedef {import("./disk.js").Part} Part
 * @typedef {{name: string, url: string, bytes: number, sha256: string}} Wanted  a file of a model
 * @typedef {{create: () => {update: (data: Uint8Array) => unknown, digest: () => Uint8Array}}} Sha256
 * @typedef {{file: string, loaded: number, total: number, phase: "download" | "check" | "compile"}} Progress  bytes
 * @typedef {(progress: Progress) => void} OnProgress
 * @typedef {{sha256: Sha256, pause: number, patience: number}} Means
 *   pause: ms before a failed request is made again, doubled each time; patience: ms without a byte, then it has failed
 * @typedef {{onProgress: OnProgress, signal?: AbortSignal}} Options
 */

const BLOCK = 1 << 22; // read at once to continue a hash
const TRIES = 4; // that bring nothing new, before it is given up
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]); // statuses that may be others a moment later
const LONGEST_WAIT_MS = 30_000;
const PROGRESS_MS = 50; // between two calls of onProgress

/** A file of which nothing more can be got from its server by asking again. */
class Unusable extends Error {}

/**
 * Downloads what is missing of a file and makes the part a file. What came so far is kept when it does not succeed,
 * unless it is wrong. Throws PackageError, the signal's reason, or a DOMException named QuotaExceededError.
 * @param {Wanted} wanted
 * @param {Part} part
 * @param {Means & Options} means
 */
export async function download(wanted, part, means) {
  let wrong = "";
  for (let attempt = 0; attempt < 2; attempt++) {
    try {
      if (part.size() > wanted.bytes) part.empty();
      const hash = await hashed(wanted, part, means);
      const found = await fetchRest(wanted, part, hash, means);
      if (found === wanted.sha256) return await part.finish();
      wrong = `its sha256 is ${found}, the manifest says ${wanted.sha256}`;
    } catch (error) {
      if (!(error instanceof Unusable)) throw error;
      wrong = error.message;
    }
    part.empty(); // what is wrong is never kept
  }
  throw new PackageError(
    `'${wanted.name}' is damaged, downloaded twice from ${wanted.url}: ${wrong}. If the model there was updated just ` +
      "now, load it again; else put the exported folder there again, whole.",
  );
}

/**
 * The hash of what is there of a file.
 * @param {Wanted} wanted
 * @param {Part} part
 * @param {Means & Options} means
 */
async function hashed({ name }, part, { sha256, onProgress, signal }) {
  const hash = sha256.create();
  const total = part.size();
  for (let at = 0; at < total; ) {
    signal?.throwIfAborted();
    const block = await part.read(at, Math.min(BLOCK, total - at));
    hash.update(block);
    at += block.length;
    onProgress({ file: name, loaded: at, total, phase: "check" });
    await wait(0); // so that a message that aborts comes through
  }
  return hash;
}

/**
 * Appends what is missing; the sha256 of the whole file.
 * @param {Wanted} wanted
 * @param {Part} part
 * @param {ReturnType<Sha256["create"]>} hash
 * @param {Means & Options} means
 */
async function fetchRest(wanted, part, hash, { sha256, pause, patience, onProgress, signal }) {
  let furthest = part.size();
  let tries = 0;
  while (part.size() < wanted.bytes) {
    const end = new AbortController(); // of this request
    try {
      signal?.throwIfAborted();
      const both = signal ? AbortSignal.any([signal, end.signal]) : end.signal;
      const response = await ask(wanted, part.size(), both, patience);
      if (response.status !== 206 && part.size() > 0) {
        part.empty(); // a server without ranges sends it from the start
        hash = sha256.create();
      }
      for await (const chunk of chunks(response, patience)) {
        if (part.size() + chunk.length > wanted.bytes) {
          throw new Unusable(`it is longer than the ${wanted.bytes} bytes that the manifest says`);
        }
        part.append(chunk);
        hash.update(chunk);
        onProgress({ file: wanted.name, loaded: part.size(), total: wanted.bytes, phase: "download" });
      }
      if (part.size() < wanted.bytes) throw new Interruption("it ended early");
    } catch (error) {
      signal?.throwIfAborted();
      if (!(error instanceof Interruption)) throw error;
      tries = part.size() > furthest ? 1 : tries + 1;
      furthest = Math.max(furthest, part.size());
      if (tries === TRIES || navigator.onLine === false) {
        throw new PackageError(
          `cannot download '${wanted.name}' from ${wanted.url} (${error.message}): ${part.size()} of ${wanted.bytes} ` +
            "bytes are here. Load again when the network is back; it goes on from there.",
        );
      }
      await wait(Math.min(LONGEST_WAIT_MS, Math.max(error.wait, pause * 2 ** (tries - 1))), signal);
    } finally {
      end.abort();
    }
  }
  return hex(hash.digest());
}

/** A request that failed and may succeed when it is made again. */
class Interruption extends Error {
  /**
   * @param {string} message
   * @param {number} [wait] ms, as the server asked
   */
  constructor(message, wait = 0) {
    super(message);
    this.wait = wait;
  }
}

/**
 * An answer that brings the file from a position on, or from its start.
 * @param {Wanted} wanted
 * @param {number} from
 * @param {AbortSignal} signal
 * @param {number} patience
 */
async function ask({ name, url, bytes }, from, signal, patience) {
  const headers = from > 0 ? { Range: `bytes=${from}-` } : undefined;
  const request = fetch(url, { headers, signal, cache: "no-store" }); // the browser's cache would keep it a second time
  const response = await inTime(request, patience);
  if (response.status === 416) throw new Unusable(`it is shorter than the ${bytes} bytes that the manifest says`);
  if (PASSING.has(response.status)) {
    throw new Interruption(`status ${response.status}`, 1000 * Number(response.headers.get("Retry-After")) || 0);
  }
  if (!response.ok) {
    throw new PackageError(
      `cannot download '${name}': ${url} answered with status ${response.status} ${response.statusText}. ` +
        "Put every file that the manifest lists beside it.",
    );
  }
  const range = response.status === 206 ? response.headers.get("Content-Range") : null; // servers may hide it
  if (range !== null && !range.startsWith(`bytes ${from}-`)) {
    throw new Unusable(`the server sent '${range}' when asked for the bytes from ${from} on`);
  }
  return response;
}

/**
 * @param {Response} response
 * @param {number} patience
 */
async function* chunks(response, patience) {
  const reader = response.body?.getReader();
  for (;;) {
    const next = reader && (await inTime(reader.read(), patience));
    if (!next || next.done) return;
    yield next.value;
  }
}

/**
 * What the network gives; an Interruption when it fails, or gives nothing for so many ms.
 * @template T
 * @param {Promise<T>} promise
 * @param {number} patience
 * @returns {Promise<T>}
 */
async function inTime(promise, patience) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const late = new Promise((_, failed) => {
    timer = setTimeout(() => failed(new Interruption(`nothing came for ${patience / 1000} s`)), patience);
  });
  try {
    return await /** @type {Promise<T>} */ (Promise.race([promise, late]));
  } catch (error) {
    throw error instanceof TypeError ? new Interruption(error.message) : error; // fetch's error for the network's
  } finally {
    clearTimeout(timer);
  }
}

/**
 * @param {number} ms
 * @param {AbortSignal} [signal]
 */
function wait(ms, signal) {
  return new Promise((done, failed) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), failed(signal.reason)), { once: true });
  });
}

/**
 * Passes on at most one in PROGRESS_MS.
 * @param {OnProgress} [onProgress]
 * @returns {OnProgress}
 */
export function throttled(onProgress) {
  let last = 0;
  return (progress) => {
    const now = Date.now();
    if (now - last < PROGRESS_MS) return;
    last = now;
    onProgress?.(progress);
  };
}

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
