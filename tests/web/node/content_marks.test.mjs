// Holds content_marks.js and encodePrompt() to Python: tests/web/test_content_marks.py makes the vectors.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { ChatTemplate } from "../../../bindings_web/src/package/chat_template.js";
import { ContentMarks } from "../../../bindings_web/src/package/content_marks.js";
import { checkKnown, checkLength } from "../../../bindings_web/src/package/prompt_length.js";
import { TextCodec } from "../../../bindings_web/src/tokenizer/tokenizer.js";

const { EMBEDLLM_NODE_MODULES = "", EMBEDLLM_VECTORS = "" } = process.env;
/** @param {string} file */
const library = (file) => import(pathToFileURL(join(EMBEDLLM_NODE_MODULES, "@huggingface", file)).href);
const [jinja, tokenizers] = [await library("jinja/dist/index.js"), await library("tokenizers/dist/tokenizers.min.mjs")];
const { prompts, kinds } = JSON.parse(readFileSync(EMBEDLLM_VECTORS, "utf8"));
const clock = () => new Date(2025, 6, 4, 12);

for (const { title, source, tokens, specials, given, text, marked } of prompts) {
  test(`${title}: the marks are Python's`, async () => {
    const template = new ChatTemplate(jinja, source, { tokens, clock });
    await template.prepare();
    const found = template.renderMarked(given.messages, new ContentMarks(specials), {
      tools: given.tools,
      documents: given.documents,
      variables: given.variables,
      addGenerationPrompt: given.add_generation_prompt,
      continueFinalMessage: given.continue_final_message,
    });
    assert.equal(found.text, text);
    assert.equal(found.marked, marked);
  });
}

for (const { name, texts, encoded } of kinds) {
  test(`${name}: marked prompts have Python's tokens`, () => {
    const codec = new TextCodec(tokenizers, new Map(Object.entries(texts)));
    for (const { text, marked, tokens } of encoded) assert.deepEqual(codec.encodePrompt({ text, marked }), tokens, JSON.stringify(text));
  });
}

test("a text of millions of characters is refused without tokenizing it", () => {
  let counted = 0;
  const codec = { encode: (/** @type {string} */ text) => ((counted += text.length), new TextEncoder().encode(text.replace(/ +/g, " "))) };
  assert.throws(() => checkLength("a\u{1f600}".repeat(1e6), codec, 1000), { name: "ContextFull", message: /more than \d+ tokens; 1000 can/ });
  assert.ok(counted < 40_000);
  checkLength(" ".repeat(9e5), codec, 1000);
  checkLength("a".repeat(9000), codec, 1000);
});

test("a token that the model has not is named by its text", () => {
  const codec = { tokenText: (/** @type {number} */ token) => `<${token}>` };
  assert.deepEqual(checkKnown([0, 98], codec, 99), [0, 98]);
  assert.deepEqual(checkKnown([0, 99], codec, 99, 99), [0, 99]);
  assert.throws(() => checkKnown([0, 99, 120], codec, 99), { name: "RangeError", message: /has '<99>', token 99 of the tokenizer; the model has 99/ });
});
