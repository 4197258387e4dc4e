// Loading the model: the form with its address, how far the download is, and which device it came to.

import { any, button, element, input } from "./elements.js";
import { change, settings } from "./settings.js";
import { sizeText } from "./shared/bytes.js";
import { library, URLS } from "./shared/places.js";

/**
 * @import { EmbedLLM } from "../../../bindings_web/src/index.js"
 * @typedef {Parameters<NonNullable<import("../../../bindings_web/src/index.js").LoadOptions["onProgress"]>>[0]} Progress
 */

const WORDS = { download: "Downloading", check: "Checking", stored: "Reading", compile: "Preparing" };

/** @type {AbortController | null} of what is being loaded */
let loading = null;

/** Ends a loading; what came is kept, and the next one goes on from there. */
export const stopLoading = () => loading?.abort();

/**
 * Loads what the settings name. Null when the user stopped it, or began another one.
 *
 * @returns {Promise<EmbedLLM | null>}
 */
export async function loadModel() {
  stopLoading();
  const mine = (loading = new AbortController());
  const { signal } = mine;
  const { url, engine, device } = settings();
  shows(true);
  element("model-panel", HTMLDetailsElement).open = true;
  any("refused").hidden = true;
  status("Loading the model.");
  try {
    const { EmbedLLM } = await library();
    signal.throwIfAborted();
    const llm = await EmbedLLM.load(url, { engine, device, urls: URLS, signal, onProgress: showProgress });
    change({ isLoaded: true });
    showModel(llm);
    return llm;
  } catch (error) {
    if (loading === mine) status("No model is loaded.");
    if (signal.aborted) return null;
    throw error;
  } finally {
    if (loading === mine) {
      loading = null;
      shows(false);
    }
  }
}

/** What the browser offers, in the settings. */
export async function showDevices() {
  const { EmbedLLM } = await library();
  const found = await EmbedLLM.devices({ urls: URLS });
  const select = element("device", HTMLSelectElement);
  const chosen = select.value;
  select.replaceChildren(select.options[0]);
  for (const { name, description, available } of found) {
    if (available) select.add(new Option(`${name}: ${description}`, name));
  }
  if (![...select.options].some(({ value }) => value === chosen)) select.add(new Option(`${chosen}: not here`, chosen));
  select.value = chosen;
  any("devices").textContent = found
    .filter(({ available }) => !available)
    .map(({ name, reason, remedy }) => `No ${name}: ${reason}${remedy ? `; ${remedy}` : ""}.`)
    .join(" ");
}

/** The models that are stored here, each with a button that removes it. */
export async function showStored() {
  const { EmbedLLM } = await library();
  const [models, usage] = await Promise.all([EmbedLLM.cache.list({ urls: URLS }), EmbedLLM.cache.usage({ urls: URLS })]);
  const quota = usage.quota === null ? "" : ` of ${sizeText(usage.quota)} that this site may store`;
  any("usage").textContent = `${sizeText(usage.models)}${quota}.`;
  any("stored").replaceChildren(
    ...models.map(({ name, url, bytes, complete }) => {
      const item = document.createElement("li");
      const text = document.createElement("span");
      text.textContent = `${name}, ${sizeText(bytes)}${complete ? "" : ", not complete"}`;
      text.title = url;
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove the stored model ${name}`);
      remove.addEventListener("click", async () => {
        await EmbedLLM.cache.remove(url, { urls: URLS });
        if (settings().url === url) change({ isLoaded: false });
        await showStored();
        button("close-settings").focus();
      });
      item.append(text, remove);
      return item;
    }),
  );
}

/** @param {string} text */
export function status(text) {
  any("status").textContent = text;
}

/** @param {boolean} is whether a loading is shown */
function shows(is) {
  any("loading").hidden = !is;
  button("stop-loading").hidden = !is;
  button("load").hidden = is;
  input("url").readOnly = is;
  showProgress({ file: "the list of files", loaded: 0, total: 0, phase: "stored" });
}

/** @param {Progress} progress */
function showProgress({ file, loaded, total, phase }) {
  const bar = element("loading-bar", HTMLProgressElement);
  const isBytes = phase !== "compile" && total > 0;
  if (total > 0 && isBytes) bar.value = loaded / total;
  else bar.removeAttribute("value"); // it moves, and says nothing of how long
  const amount = isBytes ? `: ${sizeText(loaded)} of ${sizeText(total)}` : "";
  any("loading-text").textContent = `${WORDS[phase]} ${file}${amount}`;
}

/** @param {EmbedLLM} llm */
function showModel(llm) {
  const { name, description } = llm.device;
  status(`${llm.name} runs on ${name} (${description}). It reads ${llm.context} tokens at once.`);
  element("model-panel", HTMLDetailsElement).open = false;
  any("refused").hidden = llm.refused.length === 0;
  any("refused-list").replaceChildren(
    ...llm.refused.map(({ name, reason, remedy }) => {
      const item = document.createElement("li");
      item.textContent = `${name}: ${reason}${remedy ? `. To do: ${remedy}` : ""}`;
      return item;
    }),
  );
}
