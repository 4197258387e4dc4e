// An update of a stored model: what was there before stays until the new is whole, or its room is needed.

import { locked } from "./locks.js";

/** Behind the address of a model: its record of before an update that is not whole yet. */
const OLD = "#old";

/**
 * @typedef {import("./store.js").Store} Store
 * @typedef {import("./opfs.js").Place} Place
 */

/**
 * Writes down what a model consists of now, and what it did before if that can be used.
 * @param {Store} store
 * @param {string} url
 * @param {string} manifest  its text
 */
export async function writeUpdate(store, url, manifest) {
  const before = await store.model(url);
  const isSame = before?.manifest === manifest; // the update goes on
  const isUsable = before && !isSame && (await store.isWhole(before));
  if (isUsable && !(await store.model(url + OLD))) {
    await store.write({ ...before, url: url + OLD }).catch(() => {}); // no room: its files go
  }
  await store.write({ url, manifest, used: isSame ? before.used : [], lastUsed: Date.now() });
  await store.sweep();
}

/**
 * Removes what is stored of before updates that are whole, or of any. Whether there was something.
 * @param {Store} store
 * @param {boolean} any
 */
export function removeOld(store, any) {
  return locked("embedllm models", undefined, async () => {
    let isFound = false;
    for (const { url } of await store.models()) {
      const updated = url.endsWith(OLD) && (await store.model(url.slice(0, -OLD.length)));
      if (!updated || !(any || (await store.isWhole(updated)))) continue;
      await store.erase(url);
      isFound = true;
    }
    if (isFound) await store.sweep();
    return isFound;
  });
}
