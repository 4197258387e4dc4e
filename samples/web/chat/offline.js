// Starts the service worker, which keeps the page's files for when there is no network.

/** Waits until it is at work, so that whatever is loaded from now on is kept. It never keeps the page from starting. */
export async function workOffline() {
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("service_worker.js");
    if (navigator.serviceWorker.controller) return;
    await Promise.race([
      new Promise((done) => navigator.serviceWorker.addEventListener("controllerchange", done, { once: true })),
      new Promise((done) => setTimeout(done, 5000)),
    ]);
  } catch (error) {
    console.warn("the page will not work offline:", error);
  }
}
