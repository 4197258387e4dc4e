/** Loads format.js for the templates that format texts: few do. */

import { unsupported } from "./values.js";

/** @typedef {import("./values.js").Value} Value */

const FORMATS = /\bformat\b|(?:^|[^{])%(?!\})/; // a % that is no tag's

/** @type {typeof import("./format.js") | null} */
let formats = null;

/** What templates need besides, before they are rendered. @param {string} source of all of them */
export async function loadFormats(source) {
  if (FORMATS.test(source)) formats ??= await import("./format.js");
}

/** See format.js. @param {string} form @param {Value[]} args @param {Map<string, Value>} named @returns {string} */
export const formatText = (form, args, named) => (formats ?? unsupported("a format")).formatText(form, args, named);

/** See format.js. @param {string} form @param {Value[]} args @returns {string} */
export const formatPercent = (form, args) => (formats ?? unsupported("a format")).formatPercent(form, args);
