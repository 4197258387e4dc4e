/** Which special tokens of a rendered prompt came with what the template was given: the twin of embedllm/text/content_marks.py. */

import { NO_TOKEN } from "../tokenizer/added_tokens.js";

/**
 * What a chat template wrote. marked: the same with another letter where no special token begins, whatever stands there:
 * it came with the messages.
 *
 * @typedef {{text: string, marked: string}} RenderedPrompt
 */

/** @typedef {{isAssistant: boolean, special: string}} Group whose message holds it; the special token's text, "" for a part of one */
/** @typedef {(variables: Record<string, unknown>) => string} Render */
/** @typedef {(group: string) => boolean} Wanted whether a group, by its key, is masked */

const MASK = "\udc00"; // half a surrogate pair, which no tokenizer takes; tojson may write it as the escape below
const ESCAPED = "\\udc00";
const CONTENT = ["messages", "tools", "documents"]; // of a template's variables
const STRUCTURE = ["role", "type"]; // their values are the application's own, and templates make marks of them
const MOST_RENDERINGS = 64; // to find what a template reads; what takes more is an attack

/** @param {string} text */
const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");

/** Finds the texts of special tokens in what a template is given. */
export class ContentMarks {
  #whole;
  #beginnings;
  #longest;

  /** @param {Iterable<string>} specialTexts */
  constructor(specialTexts) {
    const texts = [...specialTexts].filter(Boolean).sort((a, b) => b.length - a.length);
    this.#whole = new RegExp(texts.length ? texts.map(escaped).join("|") : "(?!)", "g");
    this.#beginnings = new Set(texts.flatMap((text) => Array.from({ length: text.length - 1 }, (_, at) => text.slice(0, at + 1))));
    this.#longest = texts[0]?.length ?? 0;
  }

  /**
   * The prompt of a template; see the Python twin for what it takes for the template's own.
   *
   * @param {Render} render
   * @param {Record<string, unknown>} variables
   * @returns {RenderedPrompt}
   */
  render(render, variables) {
    const text = render(variables);
    /** @type {Map<string, Group>} */
    const groups = new Map();
    for (const key of CONTENT) this.#walk(variables[key], (group) => (groups.set(keyOf(group), group), false));
    if (!groups.size) return { text, marked: text };
    const search = new Search(text, (keys) => this.#masked(render, variables, keys));
    let kept = search.maskable([...groups.keys()].sort());
    let found = search.literal(kept);
    if (found === null) [kept, found] = [[], []];
    for (const [key, { isAssistant, special }] of groups) {
      if (kept.includes(key) || !special || (isAssistant && search.read.has(key)) || !search.adds(key, special)) continue;
      found = [...found, ...places(text, special)];
    }
    const units = text.split("");
    for (const place of found) units[place] = NO_TOKEN;
    return { text, marked: units.join("") };
  }

  /** The prompt with the groups masked, null where the template fails on it. @param {Render} render @param {Record<string, unknown>} variables @param {string[]} keys */
  #masked(render, variables, keys) {
    const changed = CONTENT.filter((key) => key in variables).map((key) => [key, this.#walk(variables[key], (group) => keys.includes(keyOf(group)))]);
    try {
      return render({ ...variables, ...Object.fromEntries(changed) });
    } catch {
      return null;
    }
  }

  /**
   * The value with some groups masked.
   *
   * @param {unknown} value
   * @param {(group: Group) => boolean} isWanted called with each group that is found
   * @returns {unknown}
   */
  #walk(value, isWanted, isAssistant = false, isStructure = false) {
    if (typeof value === "string") return this.#text(value, isWanted, isAssistant, isStructure);
    if (Array.isArray(value)) return value.map((item) => this.#walk(item, isWanted, isAssistant));
    if (!(value instanceof Map)) return value;
    const isOne = isAssistant || value.get("role") === "assistant";
    return new Map([...value].map(([name, item]) => [
      this.#text(name, isWanted, isOne, true),
      this.#walk(item, isWanted, isOne, STRUCTURE.includes(name)),
    ]));
  }

  /** @param {string} text @param {(group: Group) => boolean} isWanted @param {boolean} isAssistant @param {boolean} isStructure */
  #text(text, isWanted, isAssistant, isStructure) {
    /** @type {number[]} */
    const masked = [];
    for (const [place, special] of this.#places(text, isStructure)) if (isWanted({ isAssistant, special })) masked.push(place);
    if (!masked.length) return text;
    const units = text.split("");
    for (const place of masked) units[place] = MASK;
    return units.join("");
  }

  /** Where the text of a special token begins, and, at the end of a text, a part of one: another may follow. @param {string} text @param {boolean} isStructure @returns {Generator<[number, string], void, void>} */
  *#places(text, isStructure) {
    for (let at = 0; ; ) {
      this.#whole.lastIndex = at;
      const match = this.#whole.exec(text);
      if (!match) break;
      at = match.index + 1;
      yield [match.index, match[0]];
    }
    if (isStructure) return;
    for (const end of new Set([text.length, text.trimEnd().length])) {
      for (let start = Math.max(0, end - this.#longest); start < end; start++) {
        if (this.#beginnings.has(text.slice(start, end))) yield [start, ""];
      }
    }
  }
}

/** Finds which groups can be masked without another change of the prompt, in a limited number of renderings. */
class Search {
  #text;
  #masked;
  #left = MOST_RENDERINGS;
  /** Those that the template is known to look for. @type {Set<string>} */
  read = new Set();

  /** @param {string} text @param {(keys: string[]) => string | null} masked */
  constructor(text, masked) {
    this.#text = text;
    this.#masked = masked;
  }

  /** By halves: mostly all of them are, or all but one or two that the template reads. @param {string[]} keys @returns {string[]} */
  maskable(keys) {
    if (this.#left <= 0) return [];
    this.#left--;
    if (this.literal(keys) !== null) return keys;
    if (keys.length === 1) {
      this.read.add(keys[0]);
      return [];
    }
    const middle = keys.length >> 1;
    return [...this.maskable(keys.slice(0, middle)), ...this.maskable(keys.slice(middle))];
  }

  /** Where the masks of these groups stand; null where the prompt becomes another. @param {string[]} keys */
  literal(keys) {
    return keys.length ? differences(this.#text, this.#masked(keys)) : [];
  }

  /** Whether the prompt may have this special token's text out of the content, as far as its number tells. @param {string} key @param {string} special */
  adds(key, special) {
    const alone = this.read.has(key) ? this.#masked([key]) : null;
    return alone === null || places(this.#text, special).length > places(alone, special).length;
  }
}

/** @param {Group} group */
const keyOf = ({ isAssistant, special }) => `${isAssistant ? "assistant" : "other"} ${special}`;

/** @param {string} text @param {string} special */
const places = (text, special) => Array.from(text.matchAll(new RegExp(escaped(special), "g")), (match) => match.index);

/** Where the masks stand in a prompt; null where it differs in more than these. @param {string} text @param {string | null} masked */
function differences(text, masked) {
  for (const found of masked === null ? [] : [masked, masked.replaceAll(ESCAPED, MASK)]) {
    if (found.length !== text.length) continue;
    /** @type {number[]} */
    const masks = [];
    const units = found.split("");
    units.forEach((unit, place) => {
      if (unit !== text[place] && unit === MASK) {
        masks.push(place);
        units[place] = text[place];
      }
    });
    if (units.join("") === text) return masks;
  }
  return null;
}
