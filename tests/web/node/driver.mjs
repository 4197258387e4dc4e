// Hands on a real Chromium, for tests: told what to do by JSON lines on stdin, answers and events on stdout.
//
//   node tests/web/node/driver.mjs NODE_MODULES CHROMIUM
//
// Each line is {"id", "do", ...arguments}, each answer {"id", "value"} or {"id", "error": {name, message, stack}}.
// Events: {"event": "console" | "error" | "external" | "crash" | "closed", "context", "page", "text"}. Nothing but
// 127.0.0.1 is reached, which plain.test is too: a proxy that leads nowhere takes all else, and every such attempt is an
// event.
// Chromium ends with this process, which ends with its stdin.

import {createRequire} from "node:module";
import {createServer} from "node:net";
import {createInterface} from "node:readline";
import {resolve} from "node:path";

const [nodeModules, executablePath] = process.argv.slice(2);
const {chromium} = createRequire(resolve(nodeModules, "of-the-driver.js"))("playwright-core");

const {EMBEDLLM_TEST_CORES: cores} = process.env; // set for a process that has a part of them
const PLAIN = "plain.test"; // over http no secure context, as 127.0.0.1 is
const FLAGS = [
  `--host-resolver-rules=MAP ${PLAIN} 127.0.0.1`, `--proxy-bypass-list=${PLAIN}`,
  "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
  "--disable-dev-shm-usage", "--enable-unsafe-webgpu",
  // The software GPU's threads are pinned to the first as many cores as the process has, 0 for one that has core 1 alone:
  // there they waited for other tests, minutes in all. So its process, and no other, has all cores.
  ...(cores ? ["--no-zygote", `--gpu-launcher=taskset -c ${cores}`] : []),
  ...(process.env.EMBEDLLM_CHROMIUM_FLAGS?.split(" ").filter(Boolean) ?? []), // such as those for a GPU: docs/webgpu.md
];

const PATIENCE_MS = 110_000; // less than the tests' own (support/calls.py): Playwright says what it waited for

const contexts = new Map(); // id -> BrowserContext
const pages = new Map(); // id -> Page
let browser = null; // of contexts without a folder
let made = 0;

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const isLocal = (url) => /^(blob:|data:|about:|chrome-error:)/.test(url) || ["127.0.0.1", PLAIN].includes(new URL(url).hostname);

/** A proxy that leads nowhere. Chromium asks it for whatever is not on this machine; pages asking is an event. */
const nowhere = createServer((socket) => {
  socket.on("error", () => {});
  socket.once("data", (data) => {
    const line = data.toString("latin1").split("\r\n", 1)[0];
    // Chromium's own errands, of no page; which flags silence them changes from version to version
    const isErrand = /google(apis)?\.com|gstatic\.com|gvt1\.com/.test(line);
    if (!isErrand) say({event: "external", context: 0, page: 0, text: line});
    socket.end("HTTP/1.1 502 Nothing is reached from tests\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
  });
});
await new Promise((done) => nowhere.listen(0, "127.0.0.1", done));
const launch = {
  executablePath,
  args: [...FLAGS, `--proxy-server=http://127.0.0.1:${nowhere.address().port}`],
  chromiumSandbox: false,
  timeout: PATIENCE_MS,
};

function watchPage(page, context) {
  const id = ++made;
  pages.set(id, page);
  const event = (name, text) => say({event: name, context, page: id, text});
  page.on("console", (message) => event("console", `${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => event("error", error?.stack ?? String(error)));
  page.on("crash", () => event("crash", page.url()));
  page.on("close", () => {
    pages.delete(id);
    event("closed", "");
  });
  return id;
}

const pageId = (page) => [...pages].find(([, other]) => other === page)?.[0] ?? null;

const commands = {
  /** A profile of its own: in a folder, which a later one can be opened on, or in memory. */
  async context({folder, args, options, program}) {
    const id = ++made;
    const all = {viewport: {width: 1000, height: 800}, ...options};
    let context;
    if (folder !== null) {
      const own = {args: [...launch.args, ...args], executablePath: program ?? executablePath};
      context = await chromium.launchPersistentContext(folder, {...launch, ...own, ...all});
    } else {
      browser ??= await chromium.launch(launch);
      context = await browser.newContext(all);
    }
    contexts.set(id, context);
    context.setDefaultTimeout(PATIENCE_MS);
    context.on("request", (request) => {
      if (!isLocal(request.url())) say({event: "external", context: id, page: 0, text: request.url()});
    });
    for (const page of context.pages()) watchPage(page, id);
    context.on("page", (page) => watchPage(page, id));
    return id;
  },
  async closeContext({context}) {
    await contexts.get(context)?.close();
    contexts.delete(context);
  },
  /** All but these. */
  async closeContexts({but}) {
    const closed = [...contexts].filter(([id]) => !but.includes(id));
    await Promise.all(closed.map(([, context]) => context.close()));
    for (const [id] of closed) contexts.delete(id);
  },
  /** As if the machine went off: the whole browser of a context with a folder dies where it is. */
  async crash({context}) {
    const page = contexts.get(context).pages()[0] ?? (await contexts.get(context).newPage());
    const session = await contexts.get(context).newCDPSession(page);
    const gone = new Promise((done) => contexts.get(context).once("close", done));
    session.send("Browser.crash").catch(() => {});
    await gone;
    contexts.delete(context);
  },
  offline: ({context, is}) => contexts.get(context).setOffline(is),
  page: async ({context}) => pageId(await contexts.get(context).newPage()),
  pages: ({context}) => contexts.get(context).pages().map(pageId),

  goto: async ({page, url}) => (await pages.get(page).goto(url))?.status() ?? null,
  reload: async ({page}) => (await pages.get(page).reload())?.status() ?? null,
  url: ({page}) => pages.get(page).url(),
  close: ({page}) => pages.get(page)?.close({runBeforeUnload: false}),
  evaluate: ({page, code, argument}) => pages.get(page).evaluate(`(${code})(${JSON.stringify(argument)})`),
  until: async ({page, code, argument, timeout}) =>
    void (await pages.get(page).waitForFunction(`(${code})(${JSON.stringify(argument)})`, undefined, {timeout})),
  waitFor: ({page, selector, state, timeout}) => pages.get(page).locator(selector).first().waitFor({state, timeout}),
  click: ({page, selector}) => pages.get(page).locator(selector).click(),
  fill: ({page, selector, text}) => pages.get(page).locator(selector).fill(text),
  type: ({page, selector, text}) => pages.get(page).locator(selector).pressSequentially(text),
  press: ({page, selector, key}) =>
    selector === null ? pages.get(page).keyboard.press(key) : pages.get(page).locator(selector).press(key),
  select: ({page, selector, value}) => pages.get(page).locator(selector).selectOption(value),
  attach: ({page, selector, files}) => pages.get(page).locator(selector).setInputFiles(files),
  text: ({page, selector}) => pages.get(page).locator(selector).innerText(),
  texts: ({page, selector}) => pages.get(page).locator(selector).allInnerTexts(),
  accessible: ({page, selector}) => pages.get(page).locator(selector).ariaSnapshot(),
  viewport: ({page, width, height}) => pages.get(page).setViewportSize({width, height}),
  media: ({page, options}) => pages.get(page).emulateMedia(options),
  screenshot: async ({page, path, full}) => void (await pages.get(page).screenshot({path, fullPage: full})),
  async cdp({page, method, params}) {
    const session = await pages.get(page).context().newCDPSession(pages.get(page));
    return session.send(method, params); // the session stays: what it overrides ends with it
  },
};

async function answer({id, do: command, ...given}) {
  try {
    say({id, value: (await commands[command](given)) ?? null});
  } catch (error) {
    const {name = "Error", message = String(error), stack = ""} = error ?? {};
    say({id, error: {name, message, stack}});
  }
}

for await (const line of createInterface({input: process.stdin})) void answer(JSON.parse(line));
await Promise.allSettled([...contexts.values()].map((context) => context.close()));
await browser?.close();
process.exit(0);
