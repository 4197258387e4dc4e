// The panel: text in, a model that is loaded when it is first needed, a summary out.

import { bookmarklet, givenText, isCut, isExtension, tabText } from "./source.js";
import { DEMO, library, URLS } from "./shared/places.js";
import { troubleOf } from "./shared/troubles.js";
import { summarise } from "./summary.js";

/** @import { EmbedLLM } from "../../../bindings_web/src/index.js" */

const KEY = "embedllm-summarise-url";

/** @template {HTMLElement} T @param {string} id @param {new () => T} kind @returns {T} */
function element(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new TypeError(`the page has no ${kind.name} '${id}'`);
  return found;
}
const any = (/** @type {string} */ id) => element(id, HTMLElement);
const text = element("text", HTMLTextAreaElement);
const url = element("url", HTMLInputElement);
const bar = element("progress", HTMLProgressElement);

/** @type {{url: string, llm: EmbedLLM} | null} */
let loaded = null;
/** @type {AbortController | null} */
let running = null;

/** @param {string} line */
const say = (line) => {
  if (any("status").textContent !== line) any("status").textContent = line;
};

/** The model at the address in the form. @param {AbortSignal} signal */
async function model(signal) {
  if (loaded?.url === url.value) return loaded.llm;
  loaded?.llm.close();
  loaded = null;
  say("Loading the model.");
  bar.hidden = false;
  const { EmbedLLM } = await library();
  const llm = await EmbedLLM.load(url.value, {
    engine: "javascript",
    urls: URLS,
    signal,
    onProgress: ({ loaded, total, phase }) => {
      if (phase === "compile" || total === 0) bar.removeAttribute("value");
      else bar.value = loaded / total;
    },
  });
  localStorage.setItem(KEY, url.value);
  loaded = { url: url.value, llm };
  return llm;
}

async function run() {
  const { signal } = (running = new AbortController());
  any("trouble").hidden = true;
  show();
  try {
    const llm = await model(signal);
    bar.hidden = true;
    for await (const { piece, pieces, isLast, text: summary } of summarise(text.value, llm, signal)) {
      any("result").hidden = false;
      any("result-heading").textContent = isLast ? "Summary" : `Part ${piece} of ${pieces}`;
      any("summary").textContent = summary;
      say(isLast ? "Writing the summary." : `Reading part ${piece} of ${pieces}.`);
    }
    say(signal.aborted ? "Stopped." : `Done, on ${llm.device.name}.`);
  } catch (error) {
    say(signal.aborted ? "Stopped." : "");
    if (!signal.aborted) showTrouble(error);
  } finally {
    running = null;
    show();
  }
}

/** @param {unknown} error */
function showTrouble(error) {
  const isPage = /** @type {Error} */ (error).name === "PageNotReadable";
  const advice = "Click the extension’s icon on the page to be read. Pages of the browser itself and its shop cannot be read.";
  const found = isPage
    ? { heading: "This page cannot be read", advice, details: /** @type {Error} */ (error).message }
    : troubleOf(error);
  any("trouble-heading").textContent = found.heading;
  any("trouble-advice").textContent = found.advice;
  any("trouble-details").textContent = found.details;
  any("trouble").hidden = false;
}

function show() {
  any("go").hidden = running !== null;
  any("stop").hidden = running === null;
  if (running === null) bar.hidden = true;
}

/** @param {{title: string, text: string}} found */
function take(found) {
  text.value = found.title && !found.text.startsWith(found.title) ? `${found.title}\n\n${found.text}` : found.text;
  showAmount(isCut(found.text) && !isExtension);
}

/** @param {boolean} isShortened */
function showAmount(isShortened) {
  const size = `${text.value.length} letters`;
  any("amount").textContent = isShortened ? `${size}: the bookmark takes no more, the rest of the page is missing.` : size;
}

element("form", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) void run();
});
any("stop").addEventListener("click", () => running?.abort());
any("copy").addEventListener("click", () => navigator.clipboard.writeText(any("summary").textContent ?? ""));
any("take").addEventListener("click", async () => {
  any("trouble").hidden = true;
  await tabText().then(take, showTrouble);
});
text.addEventListener("input", () => showAmount(false));

url.value = localStorage.getItem(KEY) ?? DEMO;
if (isExtension) {
  any("take").hidden = false;
  await tabText().then(take, () => {}); // the button says why
} else {
  const given = givenText();
  if (given) take(given);
  any("bookmark").hidden = false;
  any("bookmarklet").setAttribute("href", bookmarklet());
}
document.documentElement.dataset.ready = "";
