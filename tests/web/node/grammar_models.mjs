// Vocabularies of several kinds, and models that prefer what keeps a reply from ending, for grammar.test.mjs.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

/** Numbers in [0, 1), the same for the same seed. */
export function random(seed) {
  let state = seed * 2654435761 + 1;
  return () => {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x6d2b79f5) | 0;
    return ((state ^ (state >>> 13)) >>> 0) / 2 ** 32;
  };
}

// ---- vocabularies

const demo = new URL("../../../embedllm/demo/", import.meta.url);
const DEMO = new Map(
  ["tokenizer.json", "tokenizer_config.json"].map((name) => [name, readFileSync(new URL(name, demo), "utf8")]),
);

function alphabet() {
  const isPrintable = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : next++));
}

export const PIECES = ['{"', '":', '", "', '"}', "},", "[[", "]]", "  ", "\n\n", "\t\t", "00", "123", "-1", ".5", "true", "null", "name", "caf\u00e9", "\u{1F600}", '\\"', "\\u", "\\n", " \n ", '"name"', "}}", '""', "a b"]; // prettier-ignore
const END = { content: "<end>", special: true };
const THINK = { content: "<think>", special: false };

/** GPT-2's alphabet and some pieces, "{\"" twice. */
function byteLevel() {
  const letters = alphabet();
  const spelled = PIECES.map((piece) => [...Buffer.from(piece)].map((byte) => letters[byte]).join(""));
  const vocab = Object.fromEntries([...letters, ...spelled].map((piece, token) => [piece, token]));
  const size = letters.length + spelled.length;
  return texts({ model: { vocab }, decoder: { type: "ByteLevel" } }, size);
}

/** sentencepiece's: "\u2581" is a space, other bytes are "<0x..>". */
function byteFallback(isUnigram = false) {
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
  const spelled = ["<unk>", ...bytes, ...PIECES.map((piece) => piece.replaceAll(" ", "\u2581"))];
  const vocab = isUnigram
    ? spelled.map((piece) => [piece, -1])
    : Object.fromEntries(spelled.map((piece, token) => [piece, token]));
  const decoders = [
    { type: "Replace", pattern: { String: "\u2581" }, content: " " },
    { type: "ByteFallback" },
    { type: "Fuse" },
  ];
  const file = { model: { vocab }, decoder: { type: "Sequence", decoders } };
  return texts(file, spelled.length, [{ id: 0, content: "<unk>", special: true }]);
}

function texts(file, size, added = []) {
  const added_tokens = [...added, { ...END, id: size }, { ...THINK, id: size + 1 }];
  return new Map([["tokenizer.json", JSON.stringify({ ...file, added_tokens })]]);
}

export const VOCABULARIES = {
  demo: { texts: DEMO, stopTokens: [16375, 16377] },
  "byte level": { texts: byteLevel(), stopTokens: [256 + PIECES.length] },
  "byte fallback": { texts: byteFallback(), stopTokens: [257 + PIECES.length] },
  unigram: { texts: byteFallback(true), stopTokens: [257 + PIECES.length] },
};

/** The bytes of each token, told from the files in another way than the code does. */
function bytesOf({ texts }) {
  const { model, decoder, added_tokens } = JSON.parse(texts.get("tokenizer.json"));
  const entries = Array.isArray(model.vocab)
    ? model.vocab.map(([piece], token) => [piece, token])
    : Object.entries(model.vocab);
  const letters = alphabet();
  const found = [];
  for (const [piece, token] of entries) {
    const byte = /^<0x(..)>$/.exec(piece);
    if (decoder.type === "ByteLevel") found[token] = Buffer.from([...piece].map((letter) => letters.indexOf(letter)));
    else found[token] = byte ? Buffer.from(byte[1], "hex") : Buffer.from(piece.replaceAll("\u2581", " "));
  }
  for (const { id, content, special } of added_tokens) found[id] = Buffer.from(special ? "" : content);
  return found;
}

export const BYTES = Object.fromEntries(Object.entries(VOCABULARIES).map(([name, model]) => [name, bytesOf(model)]));

// ---- models

export const WISHES = {
  "white space": (text) => (/^\s+$/.test(text) ? 100 : 0),
  quotes: (text) => (text.includes('"') || text.includes("\\") ? 100 : 0),
  digits: (text) => (/^[\d.e+-]+$/.test(text) ? 100 : 0),
  brackets: (text) => (/^[[{,:"]+$/.test(text) ? 100 : 0),
  nothing: () => 0,
};
const CLOSING = ["}", "]", '"', " ", "e", "l"]; // the letters end true, false and null
/** Ends a string where there are many tokens to choose from, else what stands open. */
const closing = (text, isInString) =>
  isInString ? 100 * ["", " ", '"'].indexOf(text) : CLOSING.includes(text) ? 100 - 10 * CLOSING.indexOf(text) : 0;
const PATIENCE = 120; // tokens after which a model wants to end

/** How many tokens a mask allows. */
const allowed = (bits) => bits.reduce((count, word) => count + word.toString(2).replaceAll("0", "").length, 0);

/** What a model of this wish says, and whether it came to an end. */
export function reply(grammar, name, wish, seed, patience = PATIENCE) {
  const { stopTokens } = VOCABULARIES[name];
  const bytes = BYTES[name];
  const uniform = random(seed);
  const matcher = grammar.matcher();
  const said = [];
  for (let step = 0; step < patience + 2000; step++) {
    const { bits } = matcher;
    const isInString = allowed(bits) > bytes.length / 3;
    const bonus = step < patience ? wish : closing;
    let [best, highest] = [-1, -Infinity];
    bits.forEach((word, place) => {
      for (let token = place * 32; word; word >>>= 1, token++) {
        if (!(word & 1)) continue;
        const logit =
          uniform() +
          (stopTokens.includes(token)
            ? step < patience
              ? -0.5
              : 200
            : bonus(bytes[token].toString("latin1"), isInString));
        if (logit > highest) [best, highest] = [token, logit];
      }
    });
    const isStopAllowed = matcher.isStopAllowed;
    matcher.note(best);
    if (stopTokens.includes(best)) {
      assert.ok(isStopAllowed);
      return { text: Buffer.concat(said).toString(), said: Buffer.concat(said), isWhole: true };
    }
    said.push(bytes[best]);
    if (matcher.isDone) return { text: Buffer.concat(said).toString(), said: Buffer.concat(said), isWhole: true };
  }
  return { text: Buffer.concat(said).toString(), said: Buffer.concat(said), isWhole: false };
}
