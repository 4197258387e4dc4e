// What this browser offers and what this site has stored, asked of a worker that is there for one question only.

import { checkedUrls } from "../libraries.js";
import { addressOf, base } from "./options.js";
import { lostError } from "../worker/protocol.js";
import { start } from "./create_worker.js";

/** @import { Params } from "../worker/protocol.js" @import { Placed } from "./create_worker.js" */

/** @param {Placed} [placed] @returns {Promise<import("../engine/engine.js").Device[]>} */
export const devices = (placed) => asked("devices", {}, placed);

/** The models that this site has stored. */
export const cache = Object.freeze({
  /** Last used first. @param {Placed} [placed] @returns {Promise<import("../storage/model_record.js").Listed[]>} */
  list: (placed) => asked("list", {}, placed),
  /**
   * Removes a model and all files that no other one has, but no conversation; whether it was there.
   *
   * @param {string | URL} url
   * @param {Placed} [placed]
   * @returns {Promise<boolean>}
   */
  remove: async (url, placed) => asked("remove", { url: addressOf(url) }, placed),
  /**
   * Bytes: of all models, of all saved conversations, of all that this site stores, and that it may store.
   *
   * @param {Placed} [placed]
   * @returns {Promise<{models: number, conversations: number, site: number | null, quota: number | null,
   *   isPersistent: boolean}>}
   */
  usage: (placed) => asked("usage", {}, placed),
});

/** The conversations that this site has saved, of whichever model: conversation.save(name). */
export const conversations = Object.freeze({
  /** Last saved first. @param {Placed} [placed] @returns {Promise<import("../storage/saved_conversations.js").ListedConversation[]>} */
  list: (placed) => asked("listConversations", {}, placed),
  /** Whether it was there. @param {string} name @param {Placed} [placed] @returns {Promise<boolean>} */
  remove: (name, placed) => asked("removeConversation", { name }, placed),
});

/** @param {keyof Params} method @param {object} params @param {Placed} [placed] */
async function asked(method, params, placed = {}) {
  const urls = checkedUrls(placed.urls, base());
  const link = start(placed, () => {});
  try {
    return await link.call(method, /** @type {any} */ ({ ...params, urls }));
  } finally {
    link.close(lostError("the question was answered"));
  }
}
