/** Contents as a template of a model that sees writes them: loaded for such models only. */

/**
 * @import { ChatTemplate } from "./chat_template.js"
 * @import { Message } from "../worker/protocol.js"
 */

const MARK = "<<a text>>";

/**
 * Messages whose texts are lists of one part, where the template writes nothing else; as embedllm/text/prompt.py.
 *
 * @param {ChatTemplate} template @param {readonly Message[]} messages @returns {readonly Message[]}
 */
export function asParts(template, messages) {
  const asPart = (/** @type {string} */ text) => [{ type: "text", text }];
  if (writes(template, MARK) || !writes(template, asPart(MARK))) return messages;
  return messages.map((message) => (typeof message.content === "string" ? { ...message, content: asPart(message.content) } : message));
}

/** @param {ChatTemplate} template @param {unknown} content */
function writes(template, content) {
  try {
    return template.render([{ role: "user", content }]).includes(MARK);
  } catch {
    return false;
  }
}
