// Images that go with the next message: chosen, pasted or dropped, each shown small with a button that removes it.

import { any, button, input } from "./elements.js";

/** @typedef {{type: "image_url", image_url: {url: string}}} ImagePart */

/** Of what waits: data URLs, which chats are kept with. @type {string[]} */
let waiting = [];
/** Why the loaded model takes none; "" where it does, or where none is loaded. */
let refusal = "";
let onChange = () => {};

/** Tells the page of each change, so that it can keep them. @param {() => void} changed */
export function bindImages(changed) {
  onChange = changed;
  button("attach").addEventListener("click", () => {
    if (refusal) note(refusal);
    else input("files").click();
  });
  input("files").addEventListener("change", async () => {
    await attach([...(input("files").files ?? [])]);
    input("files").value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", (event) => taken(event, event.clipboardData));
  document.addEventListener("dragover", (event) => {
    if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); // or the browser opens the file
  });
  document.addEventListener("drop", (event) => taken(event, event.dataTransfer));
}

/** Those that wait, in their order. */
export const waitingImages = () => [...waiting];

/** Puts others in their place. @param {readonly string[]} urls */
export function setImages(urls) {
  waiting = [...urls];
  note("");
  showWaiting();
}

/** What the buttons say from now on. @param {{name: string, takesImages: boolean} | null} llm */
export function fitImages(llm) {
  refusal = !llm || llm.takesImages ? "" : `${llm.name} takes no images here. Load a model that sees.`;
  note("");
}

/** @param {string} text @param {readonly string[]} urls */
export const contentOf = (text, urls) =>
  urls.length ? [...urls.map(partOf), ...(text ? [{ type: "text", text }] : [])] : text;

/** What a kept message has: its text, and its images. @param {import("./history.js").Message["content"]} content */
export function partsOf(content) {
  const parts = typeof content === "string" ? [{ type: "text", text: content }] : content;
  return {
    text: parts.map((part) => ("text" in part ? part.text : "")).join(""),
    urls: parts.flatMap((part) => ("image_url" in part ? [part.image_url.url] : [])),
  };
}

/** Images of a message, for its place in the transcript. @param {readonly string[]} urls */
export function pictures(urls) {
  const list = document.createElement("div");
  list.className = "pictures";
  list.append(...urls.map((url, place) => picture(url, nameOf(place, urls.length))));
  return list;
}

/** @param {string} url @returns {ImagePart} */
const partOf = (url) => ({ type: "image_url", image_url: { url } });

/** @param {number} place @param {number} count */
const nameOf = (place, count) => (count > 1 ? `Image ${place + 1} of ${count}` : "Image");

/** @param {string} url @param {string} name */
function picture(url, name) {
  const image = document.createElement("img");
  image.src = url;
  image.alt = name;
  return image;
}

/** @param {Event} event @param {DataTransfer | null} data */
function taken(event, data) {
  if (!data?.files.length) return; // text, which the browser puts where it belongs
  event.preventDefault();
  void attach([...data.files]);
}

/** @param {File[]} files */
async function attach(files) {
  if (refusal) return note(refusal);
  note("");
  for (const file of files) {
    const url = await dataUrl(file);
    const isImage = await picture(url, "").decode().then(() => true, () => false);
    if (isImage) waiting.push(url);
    else note(`“${file.name}” is no image that this browser can read.`);
  }
  showWaiting();
  onChange();
}

/** @param {Blob} file @returns {Promise<string>} */
function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(/** @type {string} */ (reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function showWaiting() {
  const list = any("images");
  list.hidden = !waiting.length;
  list.replaceChildren(...waiting.map((url, place) => {
    const name = nameOf(place, waiting.length);
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", `Remove: ${name}`);
    remove.addEventListener("click", () => {
      waiting.splice(place, 1);
      showWaiting();
      /** @type {HTMLElement} */ (list.querySelector("button") ?? any("said")).focus();
      onChange();
    });
    const item = document.createElement("li");
    item.append(picture(url, name), remove);
    return item;
  }));
}

/** @param {string} text */
function note(text) {
  any("images-note").textContent = text;
  any("images-note").hidden = !text;
}
