// One at a time: in all tabs of a site by Web Locks, or in this worker alone where those are not to be had: over plain http,
// and where the browser lets the site store nothing.

/** @type {Map<string, Promise<unknown>>} */
const held = new Map();

/** @type {Promise<boolean> | undefined} */
let shared;

/** Whether there are Web Locks. */
const areShared = () => (shared ??= navigator.locks?.query().then(() => true, () => false));

/**
 * Does work when nobody else holds the name. Throws the signal's reason when that comes while it waits.
 * @template T
 * @param {string} name
 * @param {AbortSignal | undefined} signal
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
export async function locked(name, signal, work) {
  signal?.throwIfAborted();
  if (await areShared()) return navigator.locks.request(name, signal ? { signal } : {}, work);
  const before = held.get(name);
  const mine = (async () => {
    await before?.catch(() => {});
    signal?.throwIfAborted();
    return work();
  })();
  held.set(name, mine);
  try {
    return await mine;
  } finally {
    if (held.get(name) === mine) held.delete(name);
  }
}

/**
 * Does work if nobody holds the name, else nothing.
 * @param {string} name
 * @param {() => Promise<void>} work
 */
export async function ifFree(name, work) {
  if (await areShared()) {
    await navigator.locks.request(name, { ifAvailable: true }, async (lock) => {
      if (lock) await work();
    });
  } else if (!held.has(name)) {
    await locked(name, undefined, work);
  }
}
