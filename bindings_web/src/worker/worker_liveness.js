// Whether a worker is still there: it holds a lock until it ends, for no event says that one has ended.

/** In the worker: holds a lock for good. Its name, when it is held; empty where there are no locks. @returns {Promise<string>} */
export function holdLife() {
  return new Promise((resolve) => {
    if (!navigator.locks) return resolve(""); // nor is there randomUUID: the page came over plain http
    const name = `embedllm worker ${crypto.randomUUID()}`;
    const never = new Promise(() => {});
    navigator.locks.request(name, () => (resolve(name), never)).catch(() => resolve(""));
  });
}

/** On the page: calls back when the worker that holds the lock has ended. @param {string} name @param {AbortSignal} signal @param {() => void} gone */
export function watchLife(name, signal, gone) {
  if (name) navigator.locks.request(name, { signal }, gone).catch(() => {}); // aborted, or the page is no longer shown
}
