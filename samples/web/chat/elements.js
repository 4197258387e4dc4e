// The page's elements by their ids, of the kinds that they have.

/**
 * @template {Element} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function element(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new TypeError(`the page has no ${kind.name} '${id}'`);
  return found;
}

/** @param {string} id */
export const button = (id) => element(id, HTMLButtonElement);
/** @param {string} id */
export const input = (id) => element(id, HTMLInputElement);
/** @param {string} id */
export const any = (id) => element(id, HTMLElement);
