/** Tools for chat templates that leave them out: the twin of embedllm/tools/generic_prompt.py, which writes the same prompts. */

import { TemplateError } from "../errors.js";
import { toJson } from "../template/json.js";
import { plainMessages } from "./chat_template.js";

/** @typedef {import("./chat_template.js").ChatTemplate} ChatTemplate */
/** @typedef {Map<string, any>} PlainMessage */

/**
 * What of tools a chat template leaves out of its prompts.
 *
 * @typedef {object} TemplateGaps
 * @property {Set<boolean>} hidesTools where messages begin with a system message (true), or without (false)
 * @property {boolean} hidesCalls calls and results; always false where tools are shown
 * @property {boolean} hasSystem it takes a system message
 */

const INTRODUCTION = "You can call these tools. Each line describes one, with a JSON schema of its arguments:";
const HOW =
  'To call a tool, reply with one JSON object and nothing else: {"name": the tool\'s name, "arguments": {its arguments}}. ' +
  "The next message has its result. When no tool is needed, answer in plain text.";
const SYSTEM_ROLES = ["system", "developer"];

const ASKED = { role: "user", content: "What is known of the seventh item?" };
const SYSTEM = { role: "system", content: "Items are numbered from one." };
const NAME = "find_item";
const PARAMETERS = { type: "object", properties: { place: { type: "string", description: "a value" } }, required: ["place"] };
const TOOL = { type: "function", function: { name: NAME, description: "finds items", parameters: PARAMETERS } };

/**
 * Asked by rendering a made-up tool and a made-up call.
 *
 * @param {ChatTemplate} template
 * @returns {TemplateGaps}
 */
export function templateGaps(template) {
  /** The prompt, null where the template refuses. @param {Record<string, unknown>[]} messages @param {boolean} hasTools @param {boolean} isPrompt */
  const rendered = (messages, hasTools, isPrompt = true) => {
    try {
      return template.render(messages, { tools: hasTools ? [TOOL] : null, addGenerationPrompt: isPrompt });
    } catch (error) {
      if (error instanceof TemplateError) return null;
      throw error;
    }
  };
  const hides = (/** @type {Record<string, unknown>[]} */ messages) => rendered(messages, true)?.includes(NAME) === false;
  const hidesTools = new Set([[ASKED], [SYSTEM, ASKED]].filter(hides).map((messages) => messages.length > 1));
  const showsCall = (/** @type {unknown} */ args) => {
    const call = { id: "aB3dE6gH9", type: "function", function: { name: NAME, arguments: args } };
    const reply = { role: "assistant", content: "", tool_calls: [call] };
    return rendered([ASKED, reply], hidesTools.has(false), false)?.includes(NAME) === true;
  };
  const hidesCalls = hidesTools.size > 0 && !showsCall({ place: "x" }) && !showsCall('{"place": "x"}');
  return { hidesTools, hidesCalls, hasSystem: rendered([SYSTEM, ASKED], false)?.includes(SYSTEM.content) === true };
}

/**
 * Whether tools that go to the template with these messages would be dropped.
 *
 * @param {TemplateGaps} gaps
 * @param {readonly Record<string, unknown>[]} messages
 */
export const hideToolsOf = (gaps, messages) => gaps.hidesTools.has(beginsWithSystem(plainMessages(messages)));

/**
 * The messages with what the template leaves out. tools: schemas that it does not show; mostly none.
 *
 * @param {TemplateGaps} gaps
 * @param {readonly Record<string, unknown>[]} messages
 * @param {readonly Record<string, any>[]} tools
 * @returns {any[]} messages
 */
export function filled(gaps, messages, tools) {
  const plain = plainMessages(messages);
  const shown = gaps.hidesCalls ? callsAsText(plain) : plain;
  if (!tools.length) return shown;
  const schemas = plainMessages(tools.map((tool) => ({ role: "", content: tool.function ?? tool }))).map((one) => one.get("content"));
  const text = [INTRODUCTION, ...schemas.map((schema) => toJson(schema)), ...(gaps.hidesCalls ? ["", HOW] : [])].join("\n");
  if (beginsWithSystem(shown)) return [withContent(shown[0], "\n\n", text, false), ...shown.slice(1)];
  if (gaps.hasSystem) return [new Map([["role", "system"], ["content", text]]), ...shown];
  const place = shown.findIndex((message) => message.get("role") === "user");
  if (place < 0) return [new Map([["role", "user"], ["content", text]]), ...shown];
  return [...shown.slice(0, place), withContent(shown[place], "\n\n", text, true), ...shown.slice(place + 1)];
}

/** @param {readonly PlainMessage[]} messages */
const beginsWithSystem = (messages) => SYSTEM_ROLES.includes(messages[0].get("role"));

/**
 * Calls as the text of the assistant's messages, results as messages of the user, one for neighbours.
 *
 * @param {readonly PlainMessage[]} messages
 */
function callsAsText(messages) {
  /** @type {Map<unknown, unknown>} */
  const names = new Map();
  /** @type {PlainMessage[]} */
  const shown = [];
  let isResult = false;
  for (let message of messages) {
    const role = message.get("role");
    const calls = role === "assistant" ? message.get("tool_calls") : null;
    if (Array.isArray(calls) && calls.length) {
      const rest = new Map([...message].filter(([name]) => name !== "tool_calls"));
      message = withContent(rest, "\n", calls.map((call) => callText(call, names)).join("\n"), false);
    } else if (role === "tool") {
      const name = message.get("name") || names.get(message.get("tool_call_id"));
      const result = new Map([["role", "user"], ["content", message.get("content")]]);
      message = withContent(result, "", name ? `Result of ${name}:\n` : "Result:\n", true);
    }
    if (isResult && message.get("role") === "user") message = joined(/** @type {PlainMessage} */ (shown.pop()), message);
    isResult = role === "tool";
    shown.push(message);
  }
  return shown;
}

/** A call as the JSON that the model was asked for. @param {any} call @param {Map<unknown, unknown>} names gets its name by its id */
function callText(call, names) {
  const made = call instanceof Map ? (call.get("function") ?? call) : null;
  if (!(made instanceof Map)) return toJson(call);
  let args = made.get("arguments");
  if (typeof args === "string") {
    try {
      args = plainMessages([{ role: "", content: JSON.parse(args) }])[0].get("content") ?? null;
    } catch {
      // what cannot be read stays text
    }
  }
  if (typeof call.get("id") === "string") names.set(call.get("id"), made.get("name"));
  const isEmpty = !args || args.size === 0 || args.length === 0;
  return toJson(new Map([["name", made.get("name") ?? null], ["arguments", isEmpty ? new Map() : args]]));
}

/**
 * The message with more text before or behind its content, which may be a list of parts.
 *
 * @param {PlainMessage} message
 * @param {string} between
 * @param {string} text
 * @param {boolean} isBefore
 */
function withContent(message, between, text, isBefore) {
  const content = message.get("content");
  if (Array.isArray(content)) {
    const part = new Map([["type", "text"], ["text", isBefore ? text + between : between + text]]);
    return new Map([...message, ["content", isBefore ? [part, ...content] : [...content, part]]]);
  }
  const pieces = isBefore ? [text, content] : [content, text];
  return new Map([...message, ["content", pieces.filter((piece) => typeof piece === "string" && piece).join(between)]]);
}

/** Two messages of one role as one. @param {PlainMessage} first @param {PlainMessage} second */
function joined(first, second) {
  const content = second.get("content");
  if (!Array.isArray(content)) return withContent(first, "\n\n", typeof content === "string" ? content : "", false);
  const before = first.get("content");
  const text = (/** @type {unknown} */ said) => new Map([["type", "text"], ["text", said]]);
  return new Map([...second, ["content", [...(Array.isArray(before) ? before : [text(before)]), text("\n\n"), ...content]]]);
}
