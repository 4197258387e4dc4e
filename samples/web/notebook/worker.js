// The notebook's Python: Pyodide in a worker, with embedllm in it, which finds its libraries beside the page.

import { BRIDGE, URLS } from "./shared/places.js";

const PYTHON = `
import asyncio, io, sys, traceback
from pyodide.code import eval_code_async

names = {"__name__": "__main__"}
running = None

class Output(io.TextIOBase):  # what is printed is seen at once, not with the next end of a line
    def write(self, text):
        tell(text)
        return len(text)

    def writable(self):
        return True

sys.stdout = sys.stderr = Output()

def run(code):
    global running
    running = asyncio.ensure_future(eval_code_async(code, globals=names, filename="<cell>"))  # from now on stop() finds it
    return asyncio.ensure_future(outcome(running))

async def outcome(running):
    try:
        value = await running
        if value is not None:
            print(repr(value))
    except asyncio.CancelledError:
        return "Stopped."
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        first = next((at for at, frame in enumerate(frames) if frame.filename == "<cell>"), 0)
        own = traceback.StackSummary.from_list(frames[first:])
        return "".join(["Traceback (most recent call last):\\n", *own.format(), *traceback.format_exception_only(error)])

def stop():
    if running is not None:
        running.cancel()
`;
const POST_MS = 30; // what is printed meanwhile goes in one message

let printed = "";
let timer = 0;
let flushed = 0; // when

function flush() {
  clearTimeout(timer);
  timer = 0;
  flushed = performance.now();
  if (printed) postMessage({ text: printed });
  printed = "";
}

/** @param {string} text */
function tell(text) {
  printed += text;
  if (performance.now() - flushed > POST_MS) flush(); // a loop that never awaits keeps timers from coming
  else timer ||= /** @type {any} */ (setTimeout(flush, POST_MS));
}

async function start() {
  const { loadPyodide } = await import(URLS.pyodide);
  const python = await loadPyodide({ indexURL: new URL(".", URLS.pyodide).href });
  for (const url of [URLS.markupsafe, URLS.jinja2, URLS.wheel]) {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`'${url}' answered with status ${response.status}`);
    python.unpackArchive(await response.arrayBuffer(), "wheel");
  }
  // as embedllm/web/bridge.py looks for it; without it, the modules in the wheel and the libraries at jsDelivr are used
  const { devices, load } = await import(BRIDGE);
  python.registerJsModule("embedllm_bridge", {
    devices,
    load: (/** @type {string} */ url, /** @type {object} */ options) => load(url, { ...options, urls: URLS }),
  });
  python.globals.set("tell", tell);
  python.runPython(PYTHON);
  return { run: python.globals.get("run"), stop: python.globals.get("stop") };
}

/** @type {Promise<{run: (code: string) => Promise<string | undefined>, stop: () => void}>} */
const starting = start();
starting.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ failed: `Python cannot start: ${error.message}` }),
);

addEventListener("message", async ({ data }) => {
  if ("stop" in data) return void starting.then(({ stop }) => stop());
  try {
    const failed = await (await starting).run(data.code);
    flush();
    postMessage({ failed: failed ?? undefined, done: true });
  } catch (error) {
    flush();
    postMessage({ failed: error instanceof Error ? error.message : String(error), done: true });
  }
});
