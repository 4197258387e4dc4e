// The entry of the module worker: the model lives here, so that the page stays free.

import * as bridge from "./worker/load_model.js";
import { folderOf } from "./package/address.js";
import { loadLibrary } from "./libraries.js";
import { holdLife } from "./worker/worker_liveness.js";
import { serve } from "./worker/request_server.js";
import { Store } from "./storage/store.js";

const life = holdLife();
const conversations = async () => (await import("./storage/saved_conversations.js")).SavedConversations.open();
addEventListener("message", async ({ data }) => {
  if (data?.method === "load") postMessage({ life: await life });
});

serve(/** @type {import("./worker/protocol.js").Port} */ (/** @type {unknown} */ (globalThis)), {
  engines: {
    // each is large, and only one is used
    javascript: async (load, opening) => (await import("./worker/engine_javascript.js")).openJavaScript(bridge, load, opening),
    python: async (load, opening) => (await import("./worker/engine_python.js")).openPython(bridge, load, opening),
  },
  devices: () => bridge.devices(),
  rememberTrial: async (trial) => (await import("./engine/trials.js")).rememberTrial(trial),
  async store(urls) {
    const store = await Store.open({ sha256: (await loadLibrary("hashes", urls)).sha256 });
    return {
      list: () => store.list(),
      remove: (url) => store.remove(folderOf(url)),
      usage: async () => ({ ...(await store.usage()), conversations: await (await conversations()).bytes() }),
    };
  },
  conversations,
});
