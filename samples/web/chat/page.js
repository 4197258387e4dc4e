// The chat page: joins the model, the chats that are kept, and what the user does.

import { any, button, element, input } from "./elements.js";
import { exportChat, History, newChat, titleOf } from "./history.js";
import { bindImages, contentOf, fitImages, setImages, waitingImages } from "./images.js";
import { conversationOf, forgetCache, keepCache } from "./kept_cache.js";
import { loadModel, showDevices, showStored, status, stopLoading } from "./loading.js";
import { workOffline } from "./offline.js";
import { bindDialog, change, settings } from "./settings.js";
import { DEMO } from "./shared/places.js";
import { Speaker } from "./speaker.js";
import { addMessage, showMessages } from "./transcript.js";
import { hideTrouble, showTrouble } from "./trouble.js";

/**
 * @import { EmbedLLM } from "../../../bindings_web/src/index.js"
 * @import { Chat } from "./history.js"
 */

const chats = element("chats", HTMLSelectElement);
const said = element("said", HTMLTextAreaElement);
const speaker = new Speaker(any("spoken"));
const history = await History.open();

/** @type {EmbedLLM | null} */
let llm = null;
/** Of the chat that is open; it holds the KV cache. @type {ReturnType<EmbedLLM["conversation"]> | null} */
let conversation = null;
/** @type {AbortController | null} of the reply that is being made */
let replying = null;
let chat = newChat();
let isNew = false; // whether something was said that keepCache() has not kept

/** Loads the model of the settings, in place of the one that is there. */
async function load() {
  hideTrouble();
  replying?.abort();
  closeModel();
  try {
    const loaded = await loadModel();
    if (!loaded) return;
    llm = loaded;
    if (!llm.canChat) status(`${llm.name} has no chat template: it cannot chat.`);
    fitImages(llm);
    showState();
    if (document.activeElement === document.body || document.activeElement === button("stop-loading")) said.focus();
  } catch (error) {
    showTrouble(error, load);
  }
}

function closeModel() {
  conversation = null;
  llm?.close();
  llm = null;
  fitImages(null);
  showState();
}

function showState() {
  const canSend = llm?.canChat === true && replying === null;
  button("send").disabled = !canSend;
  button("send").hidden = replying !== null;
  button("stop").hidden = replying === null;
  for (const id of ["new", "delete", "attach"]) button(id).disabled = replying !== null;
  chats.disabled = replying !== null;
}

/** Sends what is written, and shows the reply as it comes. */
async function send() {
  const [text, images] = [said.value.trim(), waitingImages()];
  if (!(text || images.length) || !llm || replying) return;
  hideTrouble();
  const { temperature, max_tokens, system } = settings();
  const mine = (replying = new AbortController());
  said.value = "";
  await keep(text); // a page that is closed now finds it in the field again
  await update();
  setImages([]);
  const question = addMessage("user", images);
  question.show(text);
  const answer = addMessage("assistant");
  showState();
  button("stop").focus();
  speaker.begin("The model is writing.");
  let reply = "";
  try {
    conversation ??= await conversationOf(llm, chat, system);
    const content = contentOf(text, images);
    for await (const chunk of conversation.say({ role: "user", content }, { temperature, max_tokens, signal: mine.signal })) {
      reply += chunk.text;
      answer.grow(reply);
      speaker.add(reply);
      if (chunk.finish_reason === null) continue;
      answer.show(reply);
      answer.finish(chunk, llm?.device.name ?? "");
      speaker.end(reply, chunk.finish_reason === "cancelled" ? "Stopped." : "End of the reply.");
    }
    chat.messages = /** @type {Chat["messages"]} */ (conversation.save().messages);
    isNew = true;
    if (!reply && mine.signal.aborted) unsaid(text, images); // stopped before anything came
  } catch (error) {
    question.remove();
    answer.remove();
    speaker.end("", "");
    unsaid(text, images);
    showTrouble(error, send);
  } finally {
    replying = null;
    await keep(said.value);
    await showChats();
    showState();
    if (document.activeElement === document.body) said.focus();
  }
}

/** Enter that is held down does one thing, though the focus has moved on to the next button. @param {KeyboardEvent} event */
function ignoreHeld(event) {
  if (event.repeat) event.preventDefault();
}

/** What was not said after all waits again, where nothing else does. @param {string} text @param {string[]} images */
function unsaid(text, images) {
  said.value ||= text;
  if (!waitingImages().length) setImages(images);
}

/** Writes the open chat down, with the images that wait. @param {string} draft */
async function keep(draft) {
  chat.draft = draft;
  chat.images = waitingImages();
  chat.changed = Date.now();
  if (await history.keep(chat)) endConversation(); // it has another id now
}

/** Goes on from what was said in another tab. */
async function update() {
  if (!(await history.update(chat))) return;
  endConversation();
  showMessages(chat.messages);
}

function endConversation() {
  conversation?.close();
  conversation = null;
}

/** The list of chats; the open one is chosen. */
async function showChats() {
  const kept = await history.list();
  if (!kept.some(({ id }) => id === chat.id)) kept.unshift(chat);
  chats.replaceChildren(...kept.map((one) => new Option(titleOf(one), one.id, false, one.id === chat.id)));
}

/** @param {Chat} other */
async function show(other) {
  endConversation();
  chat = other;
  said.value = chat.draft;
  setImages(chat.images ?? []); // a chat of an earlier page has none
  showMessages(chat.messages);
  hideTrouble();
  await showChats();
}

element("model", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  change({ url: new URL(input("url").value).href });
  button("stop-loading").hidden = false;
  button("stop-loading").focus();
  void load();
});
button("stop-loading").addEventListener("click", () => {
  change({ isLoaded: false });
  stopLoading();
  button("load").hidden = false;
  button("load").focus();
});
element("say", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  void send();
});
button("stop").addEventListener("click", () => {
  replying?.abort();
  said.focus();
});
for (const id of ["stop", "load", "stop-loading"]) button(id).addEventListener("keydown", ignoreHeld);
said.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!event.repeat) void send();
});
said.addEventListener("change", () => replying ?? void keep(said.value));
bindImages(() => replying ?? void keep(said.value));
button("new").addEventListener("click", async () => {
  await keep(said.value);
  await show(newChat());
  said.focus();
});
button("delete").addEventListener("click", async () => {
  if (chat.messages.length && !confirm(`Delete the chat “${titleOf(chat)}”?`)) return;
  await history.remove(chat.id);
  await forgetCache(chat.id);
  await show((await history.list())[0] ?? newChat());
  said.focus();
});
button("export").addEventListener("click", () => exportChat(chat, llm?.name ?? settings().url));
chats.addEventListener("change", async () => {
  const other = (await history.list()).find(({ id }) => id === chats.value);
  await keep(said.value);
  if (other) await show(other);
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState !== "hidden" || !conversation || replying || !isNew) return;
  isNew = false;
  void keepCache(conversation);
});
button("open-settings").addEventListener("click", () => {
  void showDevices().catch((error) => (any("devices").textContent = error.message));
  void showStored().catch((error) => (any("usage").textContent = error.message));
});
bindDialog((before) => {
  const { device, engine } = settings();
  if (llm && (device !== before.device || engine !== before.engine)) void load();
});

if (!settings().url) change({ url: DEMO });
input("url").value = settings().url;
await show((await history.list())[0] ?? chat);
if (!history.isKept) status("Nothing can be stored here: this chat ends with the page.");
showState();
await workOffline();
document.documentElement.dataset.ready = "";
if (settings().isLoaded) await load();
