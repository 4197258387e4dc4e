// Where the libraries of others are, and how they get into the worker: nothing of theirs is part of these sources.

import { EmbedError, reason } from "./errors.js";

const NPM = "https://cdn.jsdelivr.net/npm";
const PYODIDE = "https://cdn.jsdelivr.net/pyodide/v314.0.7/full";

/** The addresses that are used when a page gives no others, at the versions of package.json. */
const DEFAULTS = {
  onnxruntime: `${NPM}/onnxruntime-web@1.30.0/dist/`, // a folder: which build is loaded depends on the device
  tokenizers: `${NPM}/@huggingface/tokenizers@0.2.0/dist/tokenizers.min.mjs`,
  jinja: `${NPM}/@huggingface/jinja@0.5.11/dist/index.js`,
  hashes: `${NPM}/@noble/hashes@2.4.0/sha2.js`,
  probe: `${NPM}/embedllm-web@0.1.0/probe/`, // a tiny model with known answers; only for GPUs
  pyodide: `${NPM}/pyodide@314.0.7/pyodide.mjs`, // this and what follows: only for the engine "python"
  wheel: `${NPM}/embedllm-web@0.1.0/python/embedllm-0.1.0-py3-none-any.whl`,
  jinja2: `${PYODIDE}/jinja2-3.1.6-py3-none-any.whl`, // this and the next: of Pyodide's own distribution
  markupsafe: `${PYODIDE}/markupsafe-3.0.3-cp314-cp314-pyemscripten_2026_0_wasm32.whl`,
};

/** @type {Set<string>} */
const FOLDERS = new Set(["onnxruntime", "probe"]);

/** @typedef {keyof typeof DEFAULTS} LibraryName */

/**
 * Addresses in place of the usual ones. wheel: embedllm's for browsers. jinja2 and markupsafe: wheels that Python's
 * chat templates need.
 *
 * @typedef {Partial<Record<LibraryName, string>>} Urls
 */

export const LIBRARIES = /** @type {readonly LibraryName[]} */ (Object.freeze(Object.keys(DEFAULTS)));

/**
 * The addresses, whole, of those that a page gives. Throws RangeError for a name that is none of LIBRARIES.
 *
 * @param {Urls | undefined | null} urls  may be relative
 * @param {string} base  what they are relative to
 * @returns {Urls}
 */
export function checkedUrls(urls, base) {
  const found = Object.entries(urls ?? {}).filter(([, address]) => address !== undefined);
  for (const [name, address] of found) {
    if (!LIBRARIES.includes(/** @type {LibraryName} */ (name))) {
      throw new RangeError(`urls has '${name}'; expected of: ${LIBRARIES.join(", ")}.`);
    }
    if (typeof address !== "string") throw new RangeError(`urls.${name} is a ${typeof address}; expected an address.`);
  }
  return Object.fromEntries(found.map(([name, address]) => [name, address && new URL(address, base).href]));
}

/**
 * Where a library is.
 *
 * @param {LibraryName} name
 * @param {Urls} [urls]
 * @returns {string}
 */
export function libraryUrl(name, urls = {}) {
  const given = urls[name];
  if (given !== undefined) return FOLDERS.has(name) && !given.endsWith("/") ? `${given}/` : given;
  return DEFAULTS[name];
}

/**
 * The module of a library.
 *
 * @param {LibraryName} name
 * @param {Urls} [urls]
 * @returns {Promise<any>}
 */
export async function loadLibrary(name, urls) {
  const url = libraryUrl(name, urls);
  try {
    return await import(/* webpackIgnore: true */ /* @vite-ignore */ url);
  } catch (error) {
    throw new EmbedError(
      `the library '${name}' cannot be loaded from '${url}' (${reason(error)}). Check ` +
        `the network, or give the address of a copy: urls: {${name}: ...}.`,
      { cause: error },
    );
  }
}

/**
 * The bytes of a file that belongs to a library.
 *
 * @param {LibraryName} name
 * @param {Urls} [urls]
 * @param {AbortSignal} [signal]
 * @returns {Promise<ArrayBuffer>}
 */
export async function loadBytes(name, urls, signal) {
  const url = libraryUrl(name, urls);
  let found;
  try {
    const response = await fetch(url, { signal });
    if (response.ok) return await response.arrayBuffer();
    found = `status ${response.status}`;
  } catch (error) {
    signal?.throwIfAborted();
    found = reason(error);
  }
  throw new EmbedError(
    `'${url}' cannot be read (${found}). Check the network, or give the address of a copy: urls: {${name}: ...}.`,
  );
}
