// Lets a worker see its messages between two pieces of computing.

const EVERY_MS = 8;
let last = 0;

/** Waits for what is queued for this thread, if the last time is long enough ago. A timer would take 4 ms. */
export async function breathe() {
  if (performance.now() - last < EVERY_MS) return;
  await turn();
  last = performance.now();
}

/** Waits for what is queued for this thread. */
export function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => (port1.close(), resolve(undefined));
    port2.postMessage(null);
  });
}
