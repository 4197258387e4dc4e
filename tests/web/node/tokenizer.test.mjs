// Holds bindings_web/src/tokenizer/tokenizer.js to what Python's tokenizer did: tests/web/test_text.py makes the vectors.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { TextStream } from "../../../bindings_web/src/sampling/text_stream.js";
import * as encoderParts from "../../../bindings_web/src/tokenizer/encoder_parts.js";
import { preTokenizer } from "../../../bindings_web/src/tokenizer/pretokenize.js";
import { TextCodec } from "../../../bindings_web/src/tokenizer/tokenizer.js";

const { EMBEDLLM_NODE_MODULES = "", EMBEDLLM_VECTORS = "" } = process.env;
const SHOWN = 5; // differences that a failure lists
const library = await import(pathToFileURL(join(EMBEDLLM_NODE_MODULES, "@huggingface/tokenizers/dist/tokenizers.min.mjs")).href);
const { kinds, damaged, refused, letters, splits, unknown } = JSON.parse(readFileSync(EMBEDLLM_VECTORS, "utf8"));

/** @param {Record<string, string>} texts */
const open = async (texts) => new TextCodec(library, new Map(Object.entries(texts)));
/** @param {unknown} value */
const json = (value) => JSON.stringify(value);

for (const kind of kinds) {
  test(`${kind.name}: tokens and texts are Python's`, async () => {
    const codec = await open(kind.texts);
    assert.deepEqual([...codec.specialTokens].sort((a, b) => a - b), kind.special);
    assert.deepEqual({ ...codec.named }, kind.named);
    assert.equal(codec.size, kind.size);
    const wrong = [];
    kind.spellings.forEach((spelling, token) => {
      if (codec.tokenText(token) !== spelling) wrong.push(`token ${token} is ${json(codec.tokenText(token))}, not ${json(spelling)}`);
    });
    for (const [text, id] of kind.ids) {
      if (codec.tokenId(text) !== id) wrong.push(`${json(text)} is token ${codec.tokenId(text)}, not ${id}`);
    }
    for (const [text, plain, special] of kind.encoded) {
      for (const [flag, tokens] of [[false, plain], [true, special]]) {
        const found = codec.encode(text, { special: flag });
        if (json(found) !== json(tokens)) wrong.push(`encode ${json(text)}: ${json(found.map((one) => codec.tokenText(one)))}, not ${json(tokens.map((one) => codec.tokenText(one)))}`);
      }
    }
    for (const [tokens, plain, special] of kind.decoded) {
      for (const [flag, text] of [[false, plain], [true, special]]) {
        const found = codec.decode(tokens, { special: flag });
        if (found !== text) wrong.push(`decode ${json(tokens.map((one) => codec.tokenText(one)))}: ${json(found)}, not ${json(text)}`);
      }
    }
    for (const [before, tokens, text] of kind.continued) {
      const stream = new TextStream(codec, { before });
      const found = [...tokens.map((token) => stream.push(token)), stream.flush()].join("");
      if (found !== text) wrong.push(`after ${json(before)}: ${json(found)}, not ${json(text)}`);
    }
    assert.equal(wrong.length, 0, `${wrong.length} differences, the first:\n${wrong.slice(0, SHOWN).join("\n")}`);
  });
}

for (const { name, texts } of damaged) {
  test(`damaged, ${name}: a PackageError`, async () => {
    await assert.rejects(() => open(texts), { name: "PackageError", message: /tokenizer/ });
  });
}

for (const { name, texts, words } of refused) {
  test(`refused, ${name}: a PackageError that names it`, async () => {
    await assert.rejects(() => open(texts), { name: "PackageError", message: new RegExp(words) });
  });
}

for (const { part, changed } of letters?.normalizers ?? []) {
  test(`${part.type}: every character is Python's`, () => {
    const apply = encoderParts.NORMALIZERS[part.type](part);
    const wrong = letters.codes.filter((/** @type {number} */ code) => {
      const letter = String.fromCodePoint(code);
      return apply(`a ${letter} b`) !== `a ${changed[code] ?? letter} b`;
    });
    assert.deepEqual(wrong.map((/** @type {number} */ code) => code.toString(16)), []);
  });
}

for (const { part, cuts } of letters?.preTokenizers ?? []) {
  test(`${part.type}: every character is Python's`, () => {
    const apply = encoderParts.PRE_TOKENIZERS[part.type](part);
    const wrong = letters.codes.filter((/** @type {number} */ code) => {
      const found = apply({ text: `a${String.fromCodePoint(code)}b`, isFirst: true }).filter(Boolean);
      return found.length !== (cuts[code] ?? 1);
    });
    assert.deepEqual(wrong.map((/** @type {number} */ code) => code.toString(16)), []);
  });
}

test("patterns of pre-tokenizers split as Oniguruma does", () => {
  for (const { part, cuts } of splits ?? []) {
    const split = preTokenizer(library, part, {});
    for (const [text, pieces] of cuts) assert.deepEqual(split(text, true), pieces, `${part.pattern.Regex} on ${json(text)}`);
  }
});

for (const { texts, known, tokens, text, odd } of unknown ?? []) {
  test(`an unknown token that is unknown itself: ${JSON.stringify(text)} is refused, as in Python`, async () => {
    const codec = await open(texts);
    assert.deepEqual(codec.encode(known, { special: false }), tokens);
    const words = new RegExp(`'${odd}'.*'<unk>'.*not in the vocabulary`);
    assert.throws(() => codec.encode(text, { special: false }), { name: "PackageError", message: words });
  });
}

test("a lone surrogate is refused where it stands", async () => {
  const codec = await open(kinds[0].texts);
  for (const text of ["a😀\ud800b", "a😀\udc00", "a😀\ude00\ud83d"]) {
    assert.throws(() => codec.encode(text, { special: false }), { name: "RangeError", message: /lone surrogate U\+D[89A-F0-9]{3} at character 2/ });
  }
  assert.deepEqual(codec.decode([]), "");
});
