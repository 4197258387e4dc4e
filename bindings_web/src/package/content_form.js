/** Contents as a chat template writes them: loaded for models that see, and for contents in parts; as embedllm/text/prompt.py. */

/**
 * @import { ChatTemplate } from "./chat_template.js"
 * @import { Message } from "../worker/protocol.js"
 */

const MARK = "<<a text>>";

/**
 * Messages whose texts are lists of one part where the template writes nothing else, and whose parts are one text where it
 * writes no parts. Throws RangeError for a part that is neither a text nor the mark of an image.
 *
 * @param {ChatTemplate} template @param {readonly Message[]} messages @param {boolean} hasImages
 * @returns {readonly Message[]}
 */
export function asWritten(template, messages, hasImages) {
  const asPart = (/** @type {string} */ text) => [{ type: "text", text }];
  const [takesText, takesParts] = [MARK, asPart(MARK)].map((content) => writes(template, content));
  return messages.map((message, place) => {
    let { content } = message;
    if (Array.isArray(content)) {
      const texts = content.map((part) => textOf(part, place));
      if (!takesParts && !hasImages) content = texts.join("");
    } else if (typeof content === "string" && takesParts && !takesText) content = asPart(content);
    return content === message.content ? message : { ...message, content };
  });
}

/** Its text, rather than nothing or a list as Python has it. @param {ChatTemplate} template @param {unknown} content */
function writes(template, content) {
  try {
    const shown = template.render([{ role: "user", content }]);
    return shown.includes(MARK) && !/["']type["']/.test(shown);
  } catch {
    return false;
  }
}

/** @param {any} part @param {number} place of its message @returns {string} */
function textOf(part, place) {
  if (part?.type === "image") return "";
  if (part?.type === "text" && typeof part.text === "string") return part.text;
  const found = typeof part === "object" ? `'${part?.type}'` : `a ${typeof part}`;
  throw new RangeError(
    `messages[${place}] has a part of the type ${found}; expected {'type': 'text', 'text': ...}, or 'image_url' for an image; ` +
      "there is no other.",
  );
}
