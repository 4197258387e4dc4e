// The messages of a chat, as the user sees them.

import { any } from "./elements.js";
import { partsOf, pictures } from "./images.js";
import { ReplyView } from "./reply.js";
import { rateOf } from "./shared/bytes.js";

/** @import { Message } from "./history.js" */

const WHO = /** @type {Record<string, string>} */ ({ user: "You", assistant: "Model", system: "System prompt" });
const ENDS = /** @type {Record<string, string>} */ ({
  length: "It was cut at the most tokens of a reply (settings).",
  context: "It was cut: the model can read no more. Start a new chat.",
  cancelled: "You stopped it.",
});

/** @param {Message[]} messages */
export function showMessages(messages) {
  any("transcript").replaceChildren();
  for (const { role, content } of messages) {
    const { text, urls } = partsOf(content);
    addMessage(role, urls).show(text);
  }
  scrollDown(true);
}

/**
 * One more message at the end. show() may be called with more and more of its text.
 *
 * @param {string} role @param {readonly string[]} [images] of it, as data URLs
 */
export function addMessage(role, images = []) {
  const item = document.createElement("li");
  item.className = `message ${role}`;
  const heading = document.createElement("h2");
  heading.textContent = WHO[role] ?? role;
  const body = document.createElement("div");
  item.append(heading, ...(images.length ? [pictures(images)] : []), body);
  any("transcript").append(item);
  const view = new ReplyView(body);
  let next = "";
  let frame = 0;
  const draw = () => {
    frame = 0;
    const isDown = isScrolledDown();
    view.show(next);
    if (isDown) scrollDown(false);
  };
  return {
    /** Shows a text now. @param {string} text */
    show(text) {
      cancelAnimationFrame(frame);
      next = text;
      draw();
    },
    /** Shows a text with the next picture, for texts that come fast. @param {string} text */
    grow(text) {
      next = text;
      frame ||= requestAnimationFrame(draw);
    },
    /** What the reply has cost, and why it ended. @param {import("../../../bindings_web/src/worker/protocol.js").Chunk} last @param {string} device */
    finish({ finish_reason, statistics }, device) {
      const { tokens, prompt_tokens, cached_tokens } = statistics;
      const rate = rateOf(statistics);
      const facts = [device, `${tokens} tokens`, ...(rate === null ? [] : [`${rate.toFixed(1)} tokens/s`])];
      facts.push(`${cached_tokens} of ${prompt_tokens} prompt tokens cached`);
      const line = document.createElement("p");
      line.className = "quiet facts";
      line.textContent = [ENDS[finish_reason ?? ""], facts.join(" · ")].filter(Boolean).join(" ");
      const isDown = isScrolledDown();
      item.append(line);
      if (isDown) scrollDown(false);
    },
    remove: () => item.remove(),
  };
}

/** Whether the user reads the end, and did not scroll up. */
function isScrolledDown() {
  const { scrollHeight, clientHeight, scrollTop } = document.documentElement;
  return scrollHeight - clientHeight - scrollTop < 80;
}

/** @param {boolean} isSmooth  where the user has nothing against motion */
function scrollDown(isSmooth) {
  const isStill = !isSmooth || matchMedia("(prefers-reduced-motion: reduce)").matches;
  scrollTo({ top: document.documentElement.scrollHeight, behavior: isStill ? "instant" : "smooth" });
}
