/** Messages of which a chat template writes nothing, by their role: loaded for roles that are not OpenAI's; as embedllm/text/prompt.py. */

/**
 * @import { ChatTemplate } from "./chat_template.js"
 * @import { Message } from "../worker/protocol.js"
 */

/**
 * Throws RangeError for a message whose role the template passes over, so that its text is not in the prompt.
 *
 * @param {readonly Message[]} messages @param {string} prompt @param {ChatTemplate} template
 * @param {readonly string[]} known roles that every template may leave out
 */
export function checkRoles(messages, prompt, template, known) {
  const sources = Object.values(template.templates);
  for (const [place, { role, content }] of messages.entries()) {
    const parts = Array.isArray(content) ? content : [{ text: content }];
    const texts = parts.map((part) => part?.text).filter((text) => typeof text === "string");
    const isLeftOut = texts.some((text) => !prompt.includes(text.trim()));
    if (known.includes(role) || !isLeftOut || sources.some((source) => source.includes(role))) continue;
    throw new RangeError(
      `messages[${place}]['role'] is '${role}', a role that the chat template leaves out of the prompt; expected one of ` +
        `${known.join(", ")}.`,
    );
  }
}
