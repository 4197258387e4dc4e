// What a page gives, as it can be posted to its worker.

/**
 * A copy of objects and lists: frameworks make proxies of a page's state, which cannot be cloned. Anything else stays as it is.
 *
 * @template T @param {T} value @returns {T}
 */
export function plain(value) {
  if (Array.isArray(value)) return /** @type {any} */ (value.map(plain));
  if (Object(value) !== value || Object.getPrototypeOf(value) !== Object.prototype) return value;
  return /** @type {any} */ (Object.fromEntries(Object.entries(/** @type {any} */ (value)).map(([name, one]) => [name, plain(one)])));
}
