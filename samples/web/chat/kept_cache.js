// What was computed of the open chat, kept on disk when the user leaves, so that a reload need not compute it again.
//
// Of the last chat only: for a large model it is hundreds of megabytes.

import { settings, change } from "./settings.js";
import { library, URLS } from "./shared/places.js";

/**
 * @import { EmbedLLM } from "../../../bindings_web/src/index.js"
 * @import { Chat } from "./history.js"
 * @typedef {ReturnType<EmbedLLM["conversation"]>} Conversation
 */

/**
 * The chat as a conversation of the model, with what was kept of it.
 *
 * @param {EmbedLLM} llm @param {Chat} chat @param {string} system  prompt, of a chat that begins
 * @returns {Promise<Conversation>}
 */
export async function conversationOf(llm, { id, messages }, system) {
  if (!messages.length) return llm.conversation({ id, system: system || null });
  if (settings().keptChat !== id) return llm.conversation({ id, messages });
  const kept = await llm.openConversation(id).catch(() => null); // damaged, or removed by the browser
  if (kept && JSON.stringify(kept.messages) === JSON.stringify(messages)) return kept;
  kept?.close();
  return llm.conversation({ id, messages });
}

/** Writes it, in place of the one before. @param {Conversation} conversation */
export async function keepCache(conversation) {
  const before = settings().keptChat;
  try {
    if (before && before !== conversation.id) await forgetCache(before);
    await conversation.save(conversation.id);
    change({ keptChat: conversation.id });
  } catch (error) {
    console.warn("the chat will be computed again after a reload:", error); // no room, say
  }
}

/** @param {string} id */
export async function forgetCache(id) {
  if (settings().keptChat !== id) return;
  change({ keptChat: "" });
  await (await library()).EmbedLLM.conversations.remove(id, { urls: URLS });
}
