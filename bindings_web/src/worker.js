// The entry of the module worker: the model lives here, so that the page stays free.

import * as bridge from "./bridge.js";
import { folderOf } from "./address.js";
import { loadLibrary } from "./libraries.js";
import { holdLife } from "./life.js";
import { SavedConversations } from "./saved.js";
import { serve } from "./serving.js";
import { Store } from "./store.js";

const life = holdLife();
addEventListener("message", async ({ data }) => {
  if (data?.method === "load") postMessage({ life: await life });
});

serve(/** @type {import("./messages.js").Port} */ (/** @type {unknown} */ (globalThis)), {
  engines: {
    // each is large, and only one is used
    javascript: async (load, opening) => (await import("./engine_javascript.js")).openJavaScript(bridge, load, opening),
    python: async (load, opening) => (await import("./engine_python.js")).openPython(bridge, load, opening),
  },
  devices: () => bridge.devices(),
  async store(urls) {
    const store = await Store.open({ sha256: (await loadLibrary("hashes", urls)).sha256 });
    return {
      list: () => store.list(),
      remove: (url) => store.remove(folderOf(url)),
      usage: async () => ({ ...(await store.usage()), conversations: await (await SavedConversations.open()).bytes() }),
    };
  },
  conversations: () => SavedConversations.open(),
});
