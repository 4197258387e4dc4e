/** The tokens beyond a model's own vocabulary: which ids they have, and where they stand in a text. */

/** @typedef {import("../package/tokenizer_config.js").AddedToken} AddedToken */
/** @typedef {string | number} Piece a part of a text that is still to be cut, or the id of an added token */

export const NO_TOKEN = "\ufffc"; // in the place of a letter: no special token has it
const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d"; // \w of Rust's regex
const ENDS_WITH_WORD = new RegExp(`[${WORD}]$`, "u");
const STARTS_WITH_WORD = new RegExp(`^[${WORD}]`, "u");
const SPACE = /\p{White_Space}/u;

/** Added tokens by id, numbered as the package `tokenizers` numbers them, whatever ids a file gives. */
export class AddedTokens {
  /** @type {Map<number, AddedToken>} */
  byId = new Map();
  /** @type {Map<string, number>} */
  ids = new Map();

  /** @param {(text: string) => number | undefined} modelId @param {number} modelSize tokens in the model's own vocabulary */
  constructor(modelId, modelSize) {
    this.modelId = modelId;
    this.next = modelSize; // the id of a token that is in neither
  }

  /** Add tokens, or change the flags of those that are there. @param {AddedToken[]} tokens */
  add(tokens) {
    for (const token of tokens) {
      if (!token.content) continue;
      const id = this.ids.get(token.content) ?? this.modelId(token.content) ?? this.next;
      this.next = Math.max(this.next, id + 1);
      this.ids.set(token.content, id);
      this.byId.set(id, token);
    }
  }

  /** The texts of the special ones. */
  get special() {
    return new Set([...this.byId.values()].filter((token) => token.special).map((token) => token.content));
  }
}

/**
 * What cuts a text at added tokens: those that are looked for in the raw text first, then the rest in the normalized one.
 *
 * @param {AddedTokens} added
 * @param {(text: string) => string} normalize
 * @param {boolean} splitSpecial special tokens in a text are plain text
 * @returns {(text: string, marked?: string) => Piece[]} marked: the text with NO_TOKEN where none begins; else the text
 */
export function addedTokenSplitter(added, normalize, splitSpecial) {
  const all = [...added.byId].filter(([id, token]) => added.ids.get(token.content) === id);
  const raw = all.filter(([, token]) => !token.normalized).map(([id, token]) => entry(id, token, token.content));
  const normal = all.filter(([, token]) => token.normalized).map(([id, token]) => entry(id, token, normalize(token.content)));
  const [cutRaw, cutNormal] = [raw, normal].map((entries) => cutter(entries, splitSpecial));
  const cutLiteral = cutter(normal, true);
  return (text, marked = text) => {
    const restore = restorer(text, marked);
    return cutRaw(marked).flatMap((piece) => {
      if (typeof piece === "number") return [piece];
      if (!normal.length || marked === text) return cutNormal(normalize(restore(piece)));
      const made = normalize(piece);
      if (count(made) !== count(piece)) return cutLiteral(normalize(restore(piece)));
      return cutNormal(made).map((part) => (typeof part === "number" ? part : restore(part)));
    });
  };
}

/** @param {string} text */
const count = (text) => text.split(NO_TOKEN).length;

/** What gives the pieces of a marked text, in their order, the letters of the text. @param {string} text @param {string} marked @returns {(piece: string) => string} */
function restorer(text, marked) {
  if (marked === text) return (piece) => piece;
  const letters = Array.from(marked.matchAll(new RegExp(NO_TOKEN, "g")), (match) => text[match.index]).reverse();
  return (piece) => piece.replace(new RegExp(NO_TOKEN, "g"), () => letters.pop() ?? NO_TOKEN);
}

/** @param {number} id @param {AddedToken} token @param {string} text */
const entry = (id, token, text) => ({ id, token, text });

/** @param {{id: number, token: AddedToken, text: string}[]} entries @param {boolean} splitSpecial @returns {(text: string) => Piece[]} */
function cutter(entries, splitSpecial) {
  const wanted = entries.filter(({ text }) => text !== "");
  if (!wanted.length) return (text) => (text === "" ? [] : [text]);
  const byText = new Map([...wanted].reverse().map((one) => [one.text, one])); // of two with one text, the first
  const longestFirst = [...byText.keys()].sort((a, b) => b.length - a.length);
  const pattern = new RegExp(longestFirst.map((text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|"), "g");
  return (text) => {
    /** @type {Piece[]} */
    const pieces = [];
    let given = 0;
    for (const match of text.matchAll(pattern)) {
      const { id, token } = /** @type {{id: number, token: AddedToken}} */ (byText.get(match[0]));
      let [start, stop] = [match.index, match.index + match[0].length];
      if (splitSpecial && token.special) continue;
      if (token.single_word && (isWord(text, start, stop))) continue;
      if (token.lstrip) while (start > given && SPACE.test(text[start - 1])) start--;
      if (token.rstrip) while (stop < text.length && SPACE.test(text[stop])) stop++;
      if (given < start) pieces.push(text.slice(given, start));
      pieces.push(id);
      given = stop;
    }
    if (given < text.length) pieces.push(text.slice(given));
    return pieces;
  };
}

/** Whether letters stand right before or behind a part of a text; two units hold any letter. @param {string} text @param {number} start @param {number} stop */
function isWord(text, start, stop) {
  return ENDS_WITH_WORD.test(text.slice(Math.max(0, start - 2), start)) || STARTS_WITH_WORD.test(text.slice(stop, stop + 2));
}
