// One file from the network: resumed where it stopped, checked by its hashes, tried again where it may help.

import { PackageError } from "../errors.js";
import { BlockHashes, Hashes, hashStored } from "./hashes.js";
import { isWeights } from "../package/manifest.js";
import { checkedBlocks } from "./stored_name.js";

/**
 * @typedef {import("./opfs.js").Growing} Growing
 * @typedef {import("./hashes.js").Sha256} Sha256
 * @typedef {{url: string, bytes: number, sha256: string}} Source
 * @typedef {{name: string, sources: Source[]} & import("../package/manifest.js").FileEntry} Wanted
 *   a file of a model; sources: itself, or the shards that the server has of it, in order
 * @typedef {Source & {name: string, start: number, total: number}} Piece
 *   what a source brings; name: of the file; start: where it begins there; total: bytes of the file
 * @typedef {{file: string, loaded: number, total: number, phase: "download" | "check" | "stored" | "compile"}} Progress  bytes
 * @typedef {(progress: Progress) => void} OnProgress
 * @typedef {{sha256: Sha256, pause: number, patience: number}} Means
 *   pause: ms before a failed request is made again, doubled each time; patience: ms without a byte, then it has failed
 * @typedef {{onProgress: OnProgress, signal?: AbortSignal}} Options
 */

const TRIES = 4; // that bring nothing new, before it is given up
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]); // statuses that may be others a moment later
const LONGEST_WAIT_MS = 30_000;

/** A file of which nothing more can be got from its server by asking again. */
class Unusable extends Error {}

/**
 * Downloads what is missing of a file, source by source, and makes what grew the file. What came so far is kept when it
 * does not succeed, unless it is wrong. Throws PackageError, the signal's reason, or a DOMException named
 * QuotaExceededError.
 * @param {Wanted} wanted
 * @param {Growing} growing
 * @param {Means & Options} means
 */
export async function download(wanted, growing, means) {
  const blocks = checkedBlocks(wanted);
  const hashes = blocks ? new BlockHashes(blocks) : new Hashes(means.sha256, wanted.sources.length);
  if (growing.size() > wanted.bytes) growing.cut(0);
  let start = 0;
  for (const source of wanted.sources) {
    const piece = { ...source, name: wanted.name, start, total: wanted.bytes };
    await fetchSource(piece, growing, hashes, means);
    start += source.bytes;
  }
  const found = hashes instanceof BlockHashes ? wanted.sha256 : hashes.ofAll();
  if (found === wanted.sha256) return growing.finish();
  growing.cut(0);
  throw new PackageError(
    `the shards of '${wanted.name}' are as the manifest says, but not the file that they make: its sha256 is ` +
      `${found}, the manifest says ${wanted.sha256}. Make the sharded copy again: embedllm shard FOLDER OUT`,
  );
}

/**
 * The bytes of one source, checked by its hash: of what is there of them, and what is missing.
 * @param {Piece} piece
 * @param {Growing} growing
 * @param {Hashes | BlockHashes} hashes
 * @param {Means & Options} means
 */
async function fetchSource(piece, growing, hashes, means) {
  let wrong = "";
  hashes.next();
  for (let attempt = 0; attempt < 2; attempt++) {
    try {
      await hashStored(piece, growing, hashes, means);
      await fetchRest(piece, growing, hashes, means);
      wrong = await hashes.fault(piece.sha256);
      if (!wrong) return;
    } catch (error) {
      if (!(error instanceof Unusable)) throw error;
      wrong = error.message;
    }
    growing.cut(piece.start); // what is wrong is never kept
    hashes.again();
  }
  throw new PackageError(
    `'${piece.name}' is damaged, downloaded twice from ${piece.url}: ${wrong}. If the model there was updated just ` +
      "now, load it again; else put the exported folder there again, whole.",
  );
}

/**
 * Appends what is missing of a piece.
 * @param {Piece} piece
 * @param {Growing} growing
 * @param {Hashes | BlockHashes} hashes
 * @param {Means & Options} means
 */
async function fetchRest(piece, growing, hashes, { pause, patience, onProgress, signal }) {
  const { name, url, start, total } = piece;
  const end = start + piece.bytes;
  let furthest = growing.size();
  let tries = 0;
  while (growing.size() < end) {
    const over = new AbortController(); // this request
    try {
      signal?.throwIfAborted();
      const both = signal ? AbortSignal.any([signal, over.signal]) : over.signal;
      // whole at last: of a text that is stored packed a server sends ranges of the packed bytes, which cannot be read
      const from = tries === TRIES - 1 && !isWeights(name) ? 0 : growing.size() - start;
      const response = await ask(piece, from, both, patience);
      if (response.status !== 206 && growing.size() > start) {
        growing.cut(start); // a server without ranges sends it from the start
        hashes.again();
      }
      for await (const chunk of chunks(response, patience)) {
        if (growing.size() + chunk.length > end) {
          throw new Unusable(`it is longer than the ${piece.bytes} bytes that the manifest says`);
        }
        growing.append(chunk);
        await hashes.update(chunk);
        onProgress({ file: name, loaded: growing.size(), total, phase: "download" });
      }
      if (growing.size() < end) throw new Interruption("it ended early");
    } catch (error) {
      signal?.throwIfAborted();
      if (!(error instanceof Interruption)) throw error;
      tries = growing.size() > furthest ? 1 : tries + 1;
      furthest = Math.max(furthest, growing.size());
      if (tries === TRIES || navigator.onLine === false) {
        throw new PackageError(
          `cannot download '${name}' from ${url} (${error.message}): ${growing.size()} of ${total} bytes are here. ` +
            "Load again when the network is back; it goes on from there.",
        );
      }
      await wait(Math.min(LONGEST_WAIT_MS, Math.max(error.wait, pause * 2 ** (tries - 1))), signal);
    } finally {
      over.abort();
    }
  }
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
 * @param {Piece} piece
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
 * What the network gives; an Interruption when it fails, or gives nothing within the timeout in ms.
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
