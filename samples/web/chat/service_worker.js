// Keeps the page's files: from the server when it answers, as they were the last time when it does not.
//
// All that was loaded once is kept: the page, embedllm's modules, the libraries that the chosen engine and device took.
// Models are not: the library keeps their files itself, checked, and they would be here twice.

const NAME = "embedllm-chat-1";
const PAGE = ["./", "chat.css", "page.js", "elements.js", "settings.js", "history.js", "images.js", "kept_cache.js", "loading.js",
  "offline.js", "reply.js", "speaker.js", "transcript.js", "trouble.js", "shared/base.css", "shared/bytes.js", "shared/places.js",
  "shared/troubles.js", "manifest.webmanifest", "icon.svg", "icon-192.png"];
const PATIENCE_MS = 5000; // for a server that does not answer, when the file is here

const scope = /** @type {any} */ (globalThis).registration.scope;

addEventListener("install", (/** @type {any} */ event) => {
  event.waitUntil(
    (async () => {
      const cache = await caches.open(NAME);
      await cache.addAll(PAGE.map((path) => new Request(path, { cache: "no-cache" })));
      await /** @type {any} */ (globalThis).skipWaiting();
    })(),
  );
});

addEventListener("activate", (/** @type {any} */ event) => {
  event.waitUntil(
    (async () => {
      const old = (await caches.keys()).filter((name) => name.startsWith("embedllm-chat-") && name !== NAME);
      await Promise.all(old.map((name) => caches.delete(name)));
      await /** @type {any} */ (globalThis).clients.claim();
    })(),
  );
});

addEventListener("fetch", (/** @type {any} */ event) => {
  const { request } = event;
  const isOurs = request.method === "GET" && request.url.startsWith(scope) && !request.headers.has("Range");
  if (!isOurs || request.url.startsWith(`${scope}models/`)) return; // the browser's own way
  event.respondWith(answer(event, request));
});

/** @param {any} event @param {Request} request */
async function answer(event, request) {
  const cache = await caches.open(NAME);
  const kept = await cache.match(request, { ignoreSearch: request.mode === "navigate" });
  const fetched = fetch(request, request.mode === "navigate" ? {} : { cache: "no-cache" });
  try {
    const response = await (kept ? inTime(fetched) : fetched);
    if (response.status >= 500 && kept) return kept;
    const isNew = response.status === 200 && response.headers.get("ETag") !== (kept?.headers.get("ETag") ?? "");
    if (isNew) event.waitUntil(cache.put(request, response.clone()).catch(() => {})); // no room: it works online
    return response;
  } catch (error) {
    if (kept) return kept;
    throw error;
  }
}

/** @template T @param {Promise<T>} promise @returns {Promise<T>} */
function inTime(promise) {
  return Promise.race([promise, new Promise((_, late) => setTimeout(() => late(new Error("too slow")), PATIENCE_MS))]);
}
