// Where the text comes from: the tab beside the panel, the address that the bookmarklet made, or what the user pastes.

import { pageText } from "./page_text.js";

export const isExtension = Boolean(globalThis.chrome?.scripting);
/** Letters that the bookmarklet puts into an address, of which browsers take about 2,000,000 bytes. */
const MOST = 200_000;

/** The text of the tab that the icon was clicked on. @returns {Promise<{title: string, text: string}>} */
export async function tabText() {
  const [tab] = await chrome.tabs.query({ active: true, currentWindow: true });
  try {
    const [{ result }] = await chrome.scripting.executeScript({ target: { tabId: tab.id }, func: pageText });
    return result;
  } catch (error) {
    throw Object.assign(new Error(/** @type {Error} */ (error).message), { name: "PageNotReadable" });
  }
}

/** What the bookmarklet put behind "#"; the address is cleaned, so that the text is not in the history. */
export function givenText() {
  if (location.hash.length < 2) return null;
  try {
    const { title, text } = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    history.replaceState(null, "", location.pathname);
    return typeof text === "string" ? { title: String(title), text } : null;
  } catch {
    return null; // some other page's link
  }
}

/** The bookmarklet's address. It sends the text through the new address, as a page that is isolated has no opener. */
export function bookmarklet() {
  const page = JSON.stringify(location.origin + location.pathname);
  const code = `(()=>{const p=(${pageText})(),t=p.text.slice(0,${MOST}).toWellFormed?.()??p.text.slice(0,${MOST});` +
    `open(${page}+"#"+encodeURIComponent(JSON.stringify({title:p.title,text:t})))})()`;
  return `javascript:${encodeURIComponent(code.replace(/\/\*\*.*?\*\//gs, ""))}`;
}

/** Whether the bookmarklet may have left out the end. @param {string} text */
export const isCut = (text) => text.length >= MOST;
