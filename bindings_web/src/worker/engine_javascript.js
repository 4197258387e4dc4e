// The engine "javascript": the twin of the rule, for pages that want no Python. As embedllm/model/model.py joins the parts.

import { ChatTemplate } from "../package/chat_template.js";
import { ContentMarks } from "../package/content_marks.js";
import { TemplateError } from "../errors.js";
import { hasImages, takesImages } from "../images/parts.js";
import { Grammars } from "../grammar/cache.js";
import { loadLibrary } from "../libraries.js";
import { Sampling } from "../sampling/options.js";
import { Runner } from "./runner.js";
import { checkKnown, checkLength } from "../package/prompt_length.js";
import { readDefaults } from "../package/generation_config.js";

/**
 * @import { Bridge } from "./engine_python.js"
 * @import { Loaded } from "./load_model.js"
 * @import { ModelImages } from "../images/prompt.js"
 * @import { Load, Message, Reply } from "./protocol.js"
 * @import { Opened, Opening, Replying } from "./request_server.js"
 * @import { TemplateGaps } from "../package/generic_tools.js"
 * @import { Defaults } from "../package/generation_config.js"
 * @import { Request } from "./runner.js"
 */

/** Those of OpenAI, which some templates leave out. */
const ROLES = ["system", "developer", "user", "assistant", "tool"];

/**
 * Loads a model.
 *
 * @param {Bridge} bridge
 * @param {Load} load
 * @param {Opening} opening
 * @returns {Promise<Opened>}
 */
export async function openJavaScript(bridge, { url, device, threads, context, urls, parse_special }, { onProgress, onLost, signal }) {
  const library = await loadLibrary("jinja", urls);
  const loaded = await bridge.load(url, { device, threads, context, urls, onProgress, signal });
  try {
    const model = new Model(loaded, library, await readDefaults(loaded.texts), parse_special);
    await model.prepare();
    loaded.engine.onLost = onLost;
    return model;
  } catch (error) {
    loaded.engine.close();
    throw error;
  }
}

/** @implements {Opened} */
class Model {
  #loaded;
  #library;
  #runner;
  #grammars;
  #defaults;
  #marks;
  /** @type {ChatTemplate | null} */
  #template = null;
  /** @type {TemplateGaps | null} */
  #gaps = null;
  #hasWarned = false; // that it has such gaps
  /** @type {ModelImages | null} */
  #images = null;

  /**
   * @param {Loaded} loaded @param {any} library the module @huggingface/jinja @param {Defaults} defaults
   * @param {boolean} parseSpecial
   */
  constructor(loaded, library, defaults, parseSpecial) {
    const { device, refused, engine, manifest, untried } = loaded;
    this.#loaded = loaded;
    this.#library = library;
    this.#defaults = defaults;
    this.#grammars = new Grammars(loaded.texts);
    this.#runner = new Runner(engine, loaded.tokenizer);
    this.#marks = parseSpecial ? null : new ContentMarks(loaded.tokenizer.specialTexts);
    this.kind = loaded.kind;
    const [name, canChat] = [manifest.name, this.#canChat()];
    this.about = { name, context: engine.context, canChat, takesImages: takesImages(loaded), device, refused, untried };
  }

  /** Loads what the chat template needs besides. */
  async prepare() {
    await this.#template?.prepare();
  }

  /** @param {Reply} reply @param {Replying} replying */
  async reply(reply, { signal, onChunk }) {
    const { conversation } = reply;
    try {
      const request = await this.#request(reply);
      for await (const chunk of this.#runner.stream(request, { conversation, signal })) onChunk(chunk);
    } catch (error) {
      throw this.#loaded.engine.isLost ? Object.assign(/** @type {Error} */ (error), { lost: true }) : error;
    }
  }

  /** @param {number} conversation */
  held(conversation) {
    return this.#runner.held(conversation);
  }

  /** @param {number} conversation @param {number[]} tokens */
  hold(conversation, tokens) {
    return this.#runner.hold(conversation, tokens);
  }

  /** @param {number} conversation */
  forget(conversation) {
    this.#runner.forget(conversation);
  }

  close() {
    this.#runner.close();
  }

  /**
   * What the rule shall run: the prompt as token ids, every default filled in.
   *
   * @param {Reply} reply
   * @returns {Promise<Request>}
   */
  async #request(reply) {
    const { tokenizer, manifest, engine } = this.#loaded;
    const { max_tokens, bans } = this.#defaults;
    const sampling = new Sampling({ ...this.#defaults.sampling, ...reply.sampling });
    if (reply.stop_tokens?.some((token) => token >= engine.vocabulary)) {
      throw new RangeError(`stop_tokens is [${reply.stop_tokens}]; expected a list of token ids, 0 to ${engine.vocabulary - 1}.`);
    }
    const special = reply.stop.map((text) => tokenizer.tokenId(text)); // those whose text never comes
    const stopTokens = new Set(reply.stop_tokens ?? manifest.tokens.stop);
    for (const token of special) if (token !== null && tokenizer.specialTokens.has(token)) stopTokens.add(token);
    return {
      prompt: await this.#tokens(reply),
      sampling,
      max_tokens: reply.max_tokens ?? max_tokens,
      stop: reply.stop,
      stop_tokens: stopTokens,
      top_count: reply.logprobs,
      special: reply.special,
      is_continuation: typeof reply.prompt[0] !== "object" || reply.continue_final_message,
      constraint: (await this.#grammars.maker(reply.response_format))?.(stopTokens) ?? null,
      bans: bans ?? (sampling.no_repeat_ngram ? (await import("../sampling/bans.js")).bansOf([]) : null),
    };
  }

  /**
   * The prompt as token ids. A template writes the special tokens itself, and those in messages are text; plain text gets the tokenizer's.
   *
   * @param {Reply} reply
   * @returns {Promise<number[]>}
   */
  async #tokens({ prompt, tools, documents, variables, continue_final_message: continueFinalMessage }) {
    const { tokenizer, engine } = this.#loaded;
    if (typeof prompt === "string") {
      checkLength(prompt, tokenizer, engine.context);
      return checkKnown(tokenizer.encode(prompt, { special: true }), tokenizer, engine.vocabulary);
    }
    if (typeof prompt[0] !== "object") return /** @type {number[]} */ (prompt);
    const messages = /** @type {Message[]} */ (prompt);
    const seen = hasImages(messages) ? await (await this.#seeing()).split(messages) : null;
    const [shown, rest] = await this.#withTools(await this.#asWritten(seen?.shown ?? messages, !!seen), tools);
    const given = { tools: rest, documents, variables, continueFinalMessage };
    const template = this.#chatTemplate();
    const written = template.renderMarked(shown, this.#marks, given);
    if (messages.some(({ role }) => !ROLES.includes(role))) {
      (await import("../package/roles.js")).checkRoles(messages, written.text, template, ROLES);
    }
    checkLength(written.text, tokenizer, engine.context);
    if (seen) return (await this.#seeing()).tokens(written, seen.images);
    return checkKnown(tokenizer.encodePrompt(written), tokenizer, engine.vocabulary);
  }

  /** What images take, loaded with the first of them. */
  async #seeing() {
    const { ModelImages } = await import("../images/prompt.js");
    return (this.#images ??= await ModelImages.open(this.#loaded));
  }

  /**
   * Messages as templates take them: most write texts only, those of some models that see nothing but lists of parts.
   *
   * @param {readonly Message[]} messages @param {boolean} hasImages
   */
  async #asWritten(messages, hasImages) {
    const isPlain = messages.every(({ content }) => !Array.isArray(content));
    if (isPlain && !(/** @type {any} */ (this.#loaded.manifest.architecture)?.vision)) return messages;
    return (await import("../package/content_form.js")).asWritten(this.#chatTemplate(), messages, hasImages);
  }

  /**
   * The messages with what the template would leave out of tools and calls, and the tools that are for the template itself.
   *
   * @param {readonly Message[]} messages
   * @param {Reply["tools"]} tools
   * @returns {Promise<[readonly any[], Reply["tools"]]>}
   */
  async #withTools(messages, tools) {
    if (!tools?.length && !messages.some(({ role, tool_calls }) => role === "tool" || tool_calls)) return [messages, tools];
    const { filled, hideToolsOf, templateGaps } = await import("../package/generic_tools.js"); // most chats have none
    const gaps = (this.#gaps ??= templateGaps(this.#chatTemplate()));
    if (!tools?.length || !hideToolsOf(gaps, messages)) return [filled(gaps, messages, []), tools];
    if (!this.#hasWarned) console.warn(`embedllm: the chat template of '${this.about.name}' does not show tools: a message describes them`);
    this.#hasWarned = true;
    return [filled(gaps, messages, tools), null];
  }

  #chatTemplate() {
    return (this.#template ??= ChatTemplate.of(this.#library, this.#loaded.texts));
  }

  #canChat() {
    try {
      return Boolean(this.#chatTemplate());
    } catch (error) {
      if (error instanceof TemplateError) return false;
      throw error;
    }
  }
}
