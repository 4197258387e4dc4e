/** Messages and tools -> prompt text, by the model's own chat template, in a sandbox: the twin of embedllm/text/chat_template.py. */

import { TemplateError } from "../errors.js";
import { strip } from "../template/strings.js";
import { loadFormats } from "../template/formats.js";
import { SandboxedTemplate } from "../template/template.js";
import { isObject } from "./manifest.js";
import { readJsonObject, readTokenizerConfig } from "./tokenizer_config.js";

/** @typedef {import("./content_marks.js").ContentMarks} ContentMarks */
/** @typedef {import("./content_marks.js").RenderedPrompt} RenderedPrompt */
/** @typedef {Record<string, unknown>} Message with a "role", and mostly a "content" */
/** @typedef {import("../template/parse.js").Library} Library the module @huggingface/jinja */

/**
 * @typedef {object} RenderOptions
 * @property {readonly Record<string, unknown>[] | null} [tools] JSON schemas
 * @property {readonly Record<string, unknown>[] | null} [documents]
 * @property {Record<string, unknown>} [variables] more names for the template, such as {enable_thinking: false}
 * @property {boolean} [addGenerationPrompt] end with what makes the model answer; true when not given
 * @property {boolean} [continueFinalMessage] leave the last message open, so that the model goes on with its "content"
 */

const RESERVED = ["messages", "tools", "documents", "add_generation_prompt"];
const REASONING = ["reasoning_content", "thinking", "reasoning"]; // one thing under the names that templates read
const TESTS_NONE = /\bcontent['"]?\]?\s*(is|[!=]=)\s*(not\s+)?none\b/i;
const MARK = "<<the message goes on here>> "; // the last space shows whether the template trims
const NO_TEMPLATE =
  "the model has no chat template (chat_template.jinja, or 'chat_template' in tokenizer_config.json). Generate from a " +
  "plain prompt, or pass a template of your own.";

export class ChatTemplate {
  #library;
  #clock;
  /** @type {Map<string, SandboxedTemplate>} */
  #compiled = new Map();

  /**
   * A model's chat template, compiled at the first use.
   *
   * @param {Library} library
   * @param {string | Record<string, string>} templates one, or several by name; "tool_use" is taken when tools are given, else "default"
   * @param {{tokens?: Record<string, string>, clock?: () => Date}} [options] tokens: the special tokens by role, as the
   *   template writes them: {bos_token: "<s>", ...}; clock: the time that a template may ask for
   */
  constructor(library, templates, { tokens = {}, clock = () => new Date() } = {}) {
    this.#library = library;
    this.#clock = clock;
    /** @type {Record<string, string>} */
    this.templates = typeof templates === "string" ? { default: templates } : { ...templates };
    this.tokens = { ...tokens };
  }

  /**
   * The template among a folder's texts: chat_template.jinja and additional_chat_templates/, else tokenizer_config.json.
   *
   * Raises TemplateError when there is none, PackageError when a file is damaged.
   * @param {Library} library
   * @param {Map<string, string>} texts
   * @param {{clock?: () => Date}} [options]
   */
  static of(library, texts, { clock } = {}) {
    const config = readTokenizerConfig(texts);
    const templates = templateFiles(texts) ?? config.chatTemplate ?? legacyTemplate(texts);
    if (!templates || (typeof templates === "object" && !Object.keys(templates).length)) throw new TemplateError(NO_TEMPLATE);
    const tokens = Object.fromEntries(Object.entries(config.named).map(([name, token]) => [name, token.content]));
    return new ChatTemplate(library, templates, { tokens, clock });
  }

  /** Loads what the templates need besides; they refuse to render without it. */
  async prepare() {
    await loadFormats(Object.values(this.templates).join("\n"));
  }

  /**
   * The prompt for a conversation.
   *
   * Raises RangeError for messages that are not in this form, TemplateError when the template refuses or fails. Objects
   * keep the order of their entries but for names that are whole numbers, which JavaScript puts first; a Map keeps all.
   * A whole number cannot be told from 1.0 and counts as an int.
   * @param {readonly Message[]} messages entries that are null count as not there
   * @param {RenderOptions} [options]
   */
  render(messages, options) {
    return this.renderMarked(messages, null, options).text;
  }

  /**
   * As render(), with the places of special tokens' texts that came with messages, tools or documents.
   *
   * @param {readonly Message[]} messages
   * @param {ContentMarks | null} marks finds them; null: the template is taken to have written all of the prompt
   * @param {RenderOptions} [options]
   * @returns {RenderedPrompt}
   */
  renderMarked(messages, marks, { tools = null, documents = null, variables = {}, addGenerationPrompt = true, continueFinalMessage = false } = {}) {
    const chat = plainMessages(messages);
    const sources = Object.values(this.templates).join();
    if (sources.includes("tool_calls") && TESTS_NONE.test(sources)) chat.forEach(withoutTextAsNull);
    const finalText = continueFinalMessage ? markEnd(chat[chat.length - 1]) : null;
    const template = this.#template(tools !== null);
    const given = {
      ...this.tokens,
      ...plainVariables(variables),
      messages: chat,
      tools: tools && plainList(tools, "tools", "expected a JSON schema"),
      documents: documents && plainList(documents, "documents", "expected an object with a 'text'"),
      add_generation_prompt: addGenerationPrompt && !continueFinalMessage,
    };
    /** @param {Record<string, unknown>} variables */
    const render = (variables) => template.render(variables);
    const prompt = marks ? marks.render(render, given) : { text: render(given), marked: "" };
    const text = finalText === null ? prompt.text : upToMark(prompt.text, finalText);
    return { text, marked: marks ? prompt.marked.slice(0, text.length) : text };
  }

  /** @param {boolean} hasTools */
  #template(hasTools) {
    const name = hasTools && Object.hasOwn(this.templates, "tool_use") ? "tool_use" : "default";
    if (!Object.hasOwn(this.templates, name)) {
      const known = Object.keys(this.templates).sort().map((one) => `'${one}'`).join(", ");
      throw new TemplateError(`the model has no chat template named '${name}', only ${known}. Pass the template to use.`);
    }
    const template = this.#compiled.get(name) ?? new SandboxedTemplate(this.#library, this.templates[name], this.#clock);
    this.#compiled.set(name, template);
    return template;
  }
}

/** As _without_text_as_none in Python. @param {Map<string, any>} message */
function withoutTextAsNull(message) {
  const isOnlyCalls = message.get("tool_calls")?.length || !message.has("content");
  if (message.get("role") === "assistant" && !message.get("content") && isOnlyCalls) message.set("content", null);
}

/** The templates that have files of their own; with any of these, transformers does not look elsewhere. @param {Map<string, string>} texts */
function templateFiles(texts) {
  /** @type {Record<string, string>} */
  const files = {};
  const own = texts.get("chat_template.jinja");
  if (own !== undefined) files.default = own;
  for (const [name, text] of [...texts].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const title = name.match(/^additional_chat_templates\/([^/]*)\.jinja$/)?.[1];
    if (title !== undefined) files[title] = text;
  }
  return Object.keys(files).length ? files : null;
}

/** The template in chat_template.json, where the processors of image models once kept it. @param {Map<string, string>} texts */
function legacyTemplate(texts) {
  const template = readJsonObject(texts, "chat_template.json").chat_template;
  return typeof template === "string" ? template : null;
}

/**
 * A copy in plain types, without entries that are null, and with reasoning under each of its names.
 *
 * @param {unknown} messages
 * @returns {Map<string, any>[]}
 */
export function plainMessages(messages) {
  if (!Array.isArray(messages) || !messages.length) throw new RangeError(`messages must be a list with at least one message, found ${shown(messages)}.`);
  return messages.map((message, place) => {
    if (!isObject(message)) throw new RangeError(`messages[${place}] is ${shown(message)}, expected an object with a 'role'.`);
    const entries = message instanceof Map ? [...message] : Object.entries(message);
    const given = new Map(entries.filter(([, value]) => value !== null && value !== undefined));
    const own = /** @type {Map<string, unknown>} */ (plain(given, `messages[${place}]`));
    if (typeof own.get("role") !== "string") throw new RangeError(`messages[${place}]['role'] is ${shown(own.get("role"))}, expected text such as 'user'.`);
    const name = REASONING.find((one) => own.has(one));
    if (name === undefined) return own;
    return new Map([["thinking", own.get(name)], ...own, ["reasoning_content", own.get(name)]]);
  });
}

/** Mark where the text of a message ends; the text without the mark. @param {Map<string, unknown>} message */
function markEnd(message) {
  const content = message.get("content");
  if (typeof content === "string") {
    message.set("content", content + MARK);
    return content;
  }
  const parts = Array.isArray(content) ? [...content].reverse() : [];
  const last = parts.find((/** @type {unknown} */ part) => part instanceof Map && typeof part.get("text") === "string");
  if (!last) throw new RangeError("continueFinalMessage: the last message has no text under 'content' to go on with.");
  const text = last.get("text");
  last.set("text", text + MARK);
  return text;
}

/** The prompt as far as the last message's own text. @param {string} prompt @param {string} finalText */
function upToMark(prompt, finalText) {
  const end = prompt.lastIndexOf(strip(MARK));
  if (end < 0 || !prompt.includes(strip(finalText))) {
    throw new TemplateError(
      `continueFinalMessage: the chat template does not write the last message as it is: ${shown(finalText)}`,
    );
  }
  const kept = prompt.slice(0, end);
  return prompt.startsWith(MARK, end) ? kept : strip(kept, null, "right");
}

/** @param {unknown} value */
const shown = (value) => JSON.stringify(value) ?? String(value);

/** The value in exact JSON types, Maps included: a template gets nothing else. @param {unknown} value @param {string} where @param {unknown[]} [around] @returns {unknown} */
function plain(value, where, around = []) {
  if (value === null || value === undefined) return null;
  if (typeof value === "string" || typeof value === "boolean" || typeof value === "number") return value;
  if (around.includes(value)) throw new RangeError(`${where} holds itself.`);
  const outer = [...around, value];
  if (Array.isArray(value)) return value.map((item, place) => plain(item, `${where}[${place}]`, outer));
  const isMap = value instanceof Map;
  if (typeof value !== "object" || (!isMap && ![Object.prototype, null].includes(Object.getPrototypeOf(value)))) {
    throw new RangeError(`${where} is a ${/** @type {object} */ (value).constructor?.name ?? typeof value}; a chat template takes what JSON can hold.`);
  }
  return new Map([...(isMap ? value : Object.entries(value))].map(([name, item]) => {
    if (typeof name !== "string") throw new RangeError(`${where} has the key ${String(name)}, expected text.`);
    return [name, plain(item, `${where}['${name}']`, outer)];
  }));
}

/** @param {readonly unknown[]} items @param {string} name @param {string} expected */
function plainList(items, name, expected) {
  return items.map((item, place) => {
    if (!isObject(item)) throw new RangeError(`${name}[${place}] is ${shown(item)}, ${expected}.`);
    return plain(item, `${name}[${place}]`);
  });
}

/** @param {Record<string, unknown>} variables */
function plainVariables(variables) {
  const taken = RESERVED.find((name) => Object.hasOwn(variables, name));
  if (taken) throw new RangeError(`variables cannot set '${taken}'; pass it as an argument.`);
  return Object.fromEntries(Object.entries(variables).map(([name, value]) => [name, plain(value, `variables['${name}']`)]));
}
