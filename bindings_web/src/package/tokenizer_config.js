/** What the small files beside tokenizer.json say: special tokens, their flags, chat templates. Twin of tokenizer_config.py. */

import { PackageError, reason } from "../errors.js";
import { isObject } from "./manifest.js";

/** @typedef {any} Json a value of a JSON file: its shape is checked where it is used */

/**
 * One token beyond the model's vocabulary, with the flags that tokenizer.json stores for it.
 *
 * @typedef {object} AddedToken
 * @property {string} content
 * @property {boolean} special
 * @property {boolean} normalized looked for in the normalized text rather than in the raw one
 * @property {boolean} lstrip takes the spaces on its left
 * @property {boolean} rstrip
 * @property {boolean} single_word not inside a word
 */

/**
 * tokenizer_config.json and special_tokens_map.json, joined the way transformers 5 joins them.
 *
 * @typedef {object} TokenizerConfig
 * @property {Record<string, AddedToken>} named "bos_token", "eos_token", "image_token", ...
 * @property {AddedToken[]} extra special tokens without a name
 * @property {AddedToken[]} added added_tokens_decoder, in the order of its ids
 * @property {boolean} splitSpecial special tokens in a text are read as plain text
 * @property {string | Record<string, string> | null} chatTemplate one template, or several by name
 */

/**
 * The tokenizer's configuration; a file that is not there counts as empty.
 *
 * Raises PackageError when a file is damaged.
 * @param {Map<string, string>} texts
 * @returns {TokenizerConfig}
 */
export function readTokenizerConfig(texts) {
  let config = readJsonObject(texts, "tokenizer_config.json");
  // the older of the two files counts only where the newer one cannot know
  if (!("added_tokens_decoder" in config)) config = { ...config, ...readJsonObject(texts, "special_tokens_map.json") };
  try {
    let extra = filled(config.extra_special_tokens) ?? filled(config.additional_special_tokens) ?? [];
    let tokens = Object.fromEntries(Object.entries(config).filter(([name]) => name.endsWith("_token")));
    if (isObject(extra)) {
      tokens = { ...tokens, ...extra };
      extra = [];
    }
    if (!Array.isArray(extra)) throw new TypeError("the extra special tokens are no list");
    const named = Object.entries(tokens).filter(([, value]) => typeof value === "string" || isObject(value));
    return {
      named: Object.fromEntries(named.map(([name, value]) => [name, addedToken(value, true)])),
      extra: extra.map((value) => addedToken(value, true)),
      added: addedTokens(filled(config.added_tokens_decoder) ?? {}),
      splitSpecial: config.split_special_tokens === true,
      chatTemplate: chatTemplate(config.chat_template ?? null),
    };
  } catch (error) {
    throw new PackageError(
      `'tokenizer_config.json' is not a tokenizer configuration: ${reason(error)}. Fetch the folder's small files again.`, { cause: error },
    );
  }
}

/**
 * The object in a JSON file, empty when there is no such file.
 *
 * Raises PackageError when the file is there and holds something else.
 * @param {Map<string, string>} texts @param {string} name @returns {Record<string, Json>}
 */
export function readJsonObject(texts, name) {
  const text = texts.get(name);
  if (text === undefined) return {};
  try {
    return object(JSON.parse(text));
  } catch (error) {
    throw new PackageError(`'${name}' is damaged: expected a JSON object (${reason(error)}). Fetch the file again.`, { cause: error });
  }
}

/** What Python's `or` would go past is null here. @param {Json} value */
const filled = (value) => (!value || (typeof value === "object" && Object.keys(value).length === 0) ? null : value);

/** @param {Json} value @returns {Record<string, Json>} */
function object(value) {
  if (isObject(value)) return value;
  throw new TypeError(`found ${Array.isArray(value) ? "a list" : JSON.stringify(value)} in the place of an object`);
}

/** @param {Json} decoder @returns {AddedToken[]} */
function addedTokens(decoder) {
  const entries = Object.entries(object(decoder));
  for (const [id] of entries) if (!/^\d+$/.test(id)) throw new TypeError(`'${id}' is no token id`);
  return entries.sort(([a], [b]) => Number(a) - Number(b)).map(([, value]) => addedToken(value, false));
}

/** @param {Json} value @param {boolean} isSpecial whether its place makes it special, whatever its own flag says @returns {AddedToken} */
export function addedToken(value, isSpecial) {
  const plain = { lstrip: false, rstrip: false, single_word: false };
  if (typeof value === "string") return { content: value, special: isSpecial, normalized: !isSpecial, ...plain };
  const entry = object(value);
  if (typeof entry.content !== "string") throw new TypeError(`a token's 'content' is ${JSON.stringify(entry.content)}, expected text`);
  const special = isSpecial || entry.special === true;
  return {
    content: entry.content,
    special,
    normalized: Boolean(entry.normalized ?? !special),
    lstrip: entry.lstrip === true,
    rstrip: entry.rstrip === true,
    single_word: entry.single_word === true,
  };
}

/** @param {Json} value @returns {string | Record<string, string> | null} */
function chatTemplate(value) {
  if (value === null || typeof value === "string") return value;
  if (!Array.isArray(value)) throw new TypeError("'chat_template' is neither a text nor a list");
  return Object.fromEntries(value.map((entry) => [String(object(entry).name), String(entry.template)]));
}
