// Messages with images on their way from a page to its worker, and into a history.

import { withImages } from "./parts.js";

/**
 * Messages with their images as Blobs or data URLs, which can be posted.
 *
 * @param {any} messages
 * @param {boolean} areTaken else they are left out, and the worker says why the model takes none
 * @returns {Promise<any>}
 */
export async function postable(messages, areTaken) {
  if (areTaken) return (await import("./blobs.js")).withBlobs(messages);
  return Promise.all(messages.map((/** @type {any} */ message) => withImages(message, ({ type }) => ({ type }))));
}

/**
 * A copy of a message with its images as data URLs, which can be stored.
 *
 * @param {any} message as postable() gives it
 * @returns {Promise<any>}
 */
export async function storable(message) {
  return (await import("./data_url.js")).withDataUrls(message);
}
