// A folder's manifest, read and checked as embedllm/package/package.py does it (docs/format.md).

import { PackageError } from "../errors.js";

export const MANIFEST = "embedllm.json";
export const WEIGHTS = "weights.safetensors";
const FORMAT = 1; // of the manifest; what comes after it is a feature
const FEATURES = ["shards", "encoder", "minimums", "float32-scales", "levels", "column-order", "vision"]; // those that this version reads
const MOST_BLOCK = 1 << 26; // bytes; one is in memory
const AGAIN = "Export the folder again and put it there whole.";

/**
 * @typedef {{bytes: number, sha256: string[], root: string}} Blocks  bytes: of a block of a file; root: the hash of its
 *   blocks' hashes
 * @typedef {{bytes: number, sha256: string, blocks?: Blocks}} FileEntry  a file as it was written
 * @typedef {{file: string} & FileEntry} ShardEntry  some of a file's bytes, as a file of their own
 * @typedef {{file: string, variant: string, activations: string, kv?: string}} Graph kv: "latent" where keys are latents (MLA)
 * @typedef {{format: number, features?: string[], name: string, context: number, tokens: {stop: number[]}, graphs: Graph[],
 *   files: Record<string, FileEntry>, shards?: Record<string, ShardEntry[]>, [key: string]: unknown}} Manifest
 */

/**
 * The manifest that a text holds.
 *
 * where: what the messages call it. Throws PackageError when it is damaged, newer than this version, or names files
 * outside of its folder.
 * @param {string} text
 * @param {string} where
 * @returns {Manifest}
 */
export function readManifest(text, where) {
  let manifest;
  try {
    manifest = JSON.parse(text);
  } catch (error) {
    throw new PackageError(`cannot read '${where}': ${/** @type {Error} */ (error).message}. ${AGAIN}`);
  }
  const fault = manifestFault(manifest);
  if (fault) throw new PackageError(`'${where}' is damaged: ${fault}. ${AGAIN}`);
  const unread = unreadFault(manifest);
  if (unread) throw new PackageError(`'${where}' ${unread}. Upgrade with: npm install embedllm-web@latest`);
  if (manifest.architecture?.encoder) {
    throw new PackageError(`'${where}' is an embedding or reranker model, which browsers do not run.`);
  }
  return manifest;
}

/**
 * Whether a listed file is one of the texts that every load reads: no graph, no weights.
 * @param {Manifest} manifest
 * @param {string} name
 */
export function isText(manifest, name) {
  return /\.(json|jinja|txt)$/.test(name) && !manifest.graphs.some((graph) => graph.file === name);
}

/**
 * Under which names a file may be stored: by what it was checked.
 * @param {FileEntry} entry
 */
export const storedNames = ({ sha256, blocks }) => (blocks ? [blocks.root, sha256] : [sha256]);

/** @param {string} name */
export const isWeights = (name) => name.endsWith(".safetensors");

/**
 * What is wrong with a manifest; empty when nothing is.
 * @param {any} manifest
 * @returns {string}
 */
function manifestFault(manifest) {
  if (!isObject(manifest)) return `it holds ${shown(manifest)}; expected a JSON object`;
  if (!isWhole(manifest.format, 1)) return `its 'format' is ${shown(manifest.format)}; expected a whole number >= 1`;
  const { features = [] } = manifest;
  if (!Array.isArray(features) || !features.every((name) => typeof name === "string" && isPrintable(name))) {
    return `its 'features' is ${shown(features)}; expected a list of names`;
  }
  if (unreadFault(manifest)) return ""; // what else it holds is not known here
  if (typeof manifest.name !== "string") return `its 'name' is ${shown(manifest.name)}; expected a string`;
  if (!isWhole(manifest.context, 1)) return `its 'context' is ${shown(manifest.context)}; expected a whole number >= 1`;
  const stop = isObject(manifest.tokens) ? manifest.tokens.stop : undefined;
  if (!Array.isArray(stop) || !stop.every((token) => isWhole(token, 0))) {
    return `its 'tokens' have the 'stop' ${shown(stop)}; expected a list of whole numbers >= 0`;
  }
  if (!isObject(manifest.files)) return `its 'files' is ${shown(manifest.files)}; expected an object`;
  if (!Array.isArray(manifest.graphs)) return `its 'graphs' is ${shown(manifest.graphs)}; expected a list`;
  const inner = manifest.architecture?.context;
  if (typeof inner === "number" && inner !== manifest.context) {
    return `it gives two contexts, ${manifest.context} and, in its architecture, ${inner}`;
  }
  return (
    filesFault(manifest.files) ||
    graphsFault(manifest.graphs, manifest.files) ||
    shardsFault(manifest.shards ?? {}, manifest.files)
  );
}

/**
 * The format or the features that this version does not read; empty when it reads the folder.
 * @param {any} manifest
 */
function unreadFault({ format, features = [] }) {
  if (format !== FORMAT) return `has format ${format}; this version of embedllm-web reads format ${FORMAT}`;
  const unknown = features.filter((/** @type {string} */ name) => !FEATURES.includes(name));
  const names = unknown.map((/** @type {string} */ name) => `'${name}'`).join(", ");
  return names && `needs ${names}, which this version of embedllm-web does not read`;
}

/** @param {Record<string, any>} files */
function filesFault(files) {
  for (const [name, entry] of Object.entries(files)) {
    if (!isPlain(name)) return outside(name);
    const fault = entryFault(`its entry of '${name}'`, entry, 0);
    if (fault) return fault;
  }
  return WEIGHTS in files || Object.keys(files).some(isWeights) ? "" : `it does not list '${WEIGHTS}'`;
}

/**
 * @param {string} what
 * @param {any} entry
 * @param {number} least  bytes
 */
function entryFault(what, entry, least) {
  if (!isWhole(entry?.bytes, least)) {
    return `${what} has the 'bytes' ${shown(entry?.bytes)}; expected a whole number >= ${least}`;
  }
  // also because files are stored by this name
  if (!isHash(entry.sha256)) return `${what} has the 'sha256' ${shown(entry.sha256)}; expected 64 hexadecimal digits`;
  return entry.blocks === undefined ? "" : blocksFault(what, entry);
}

/** @param {string} what @param {any} entry */
function blocksFault(what, { bytes, blocks }) {
  const { bytes: size, sha256, root } = blocks ?? {};
  if (!isWhole(size, 1) || size > MOST_BLOCK) return `${what} has 'blocks' of ${shown(size)} bytes; expected 1 to ${MOST_BLOCK}`;
  const count = Math.ceil(bytes / size);
  if (Array.isArray(sha256) && sha256.length === count && [...sha256, root].every(isHash)) return "";
  return `${what} has the 'blocks' ${shown(blocks)}; expected ${count} hashes and their 'root', of 64 hexadecimal digits each`;
}

/** @param {unknown} value */
const isHash = (value) => typeof value === "string" && /^[0-9a-f]{64}$/.test(value);

/**
 * @param {any} shards
 * @param {Record<string, any>} files
 */
function shardsFault(shards, files) {
  if (!isObject(shards)) return `its 'shards' is ${shown(shards)}; expected an object`;
  const taken = new Set(Object.keys(files));
  for (const [name, list] of Object.entries(shards)) {
    if (!Object.hasOwn(files, name)) return `it has shards of '${name}' but does not list that file`;
    if (!Array.isArray(list) || list.length === 0) {
      return `its shards of '${name}' are ${shown(list)}; expected a list of one or more shards`;
    }
    for (const shard of list) {
      const fault = entryFault(`one of its shards of '${name}'`, shard, 1);
      if (fault) return fault;
      if (typeof shard.file !== "string" || !isPlain(shard.file)) return outside(shard.file);
      if (taken.has(shard.file)) return `it names the file '${shard.file}' twice`;
      taken.add(shard.file);
    }
    const total = list.reduce((sum, { bytes }) => sum + bytes, 0);
    if (total !== files[name].bytes) {
      return `the shards of '${name}' have ${total} bytes together; the file has ${files[name].bytes}`;
    }
  }
  return "";
}

/**
 * @param {any[]} graphs
 * @param {Record<string, any>} files
 */
function graphsFault(graphs, files) {
  for (const graph of graphs) {
    for (const key of ["file", "variant", "activations"]) {
      const value = graph?.[key];
      if (typeof value !== "string") return `one of its 'graphs' has the '${key}' ${shown(value)}; expected a string`;
    }
    if (!isPlain(graph.file)) return outside(graph.file);
    if (!Object.hasOwn(files, graph.file)) return `it names the graph '${graph.file}' but does not list that file`;
  }
  return "";
}

/**
 * Whether a file name cannot lead out of the folder, on any system, and can be printed.
 * @param {string} name
 */
function isPlain(name) {
  return isPrintable(name) && !/[\\:]/.test(name) && !name.split("/").some((part) => ["", ".", ".."].includes(part));
}

/** @param {string} name */
const isPrintable = (name) => !/[\p{C}\p{Z}]/u.test(name.replaceAll(" ", ""));

/** @param {unknown} name */
const outside = (name) => `it names the file ${shown(name)}; expected one inside its folder, of printable characters`;

/** @param {unknown} value @returns {value is Record<string, any>} */
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * @param {unknown} value
 * @param {number} least
 */
const isWhole = (value, least) => Number.isSafeInteger(value) && /** @type {number} */ (value) >= least;

/** @param {unknown} value */
function shown(value) {
  const text = JSON.stringify(value) ?? "missing";
  return text.length > 60 ? `${text.slice(0, 60)}...` : text;
}
