// Holds chat_template.js, the template engine under it, and generation_config.js to Python: tests/web/test_text.py makes the vectors.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { ChatTemplate } from "../../../bindings_web/src/package/chat_template.js";
import { readDefaults } from "../../../bindings_web/src/package/generation_config.js";
import { filled, templateGaps } from "../../../bindings_web/src/package/generic_tools.js";
import { SandboxedTemplate } from "../../../bindings_web/src/template/template.js";

const { EMBEDLLM_NODE_MODULES = "", EMBEDLLM_VECTORS = "" } = process.env;
const library = await import(pathToFileURL(join(EMBEDLLM_NODE_MODULES, "@huggingface/jinja/dist/index.js")).href);
const vectors = JSON.parse(readFileSync(EMBEDLLM_VECTORS, "utf8"));
const clock = () => new Date(2025, 6, 4, 12);
const USER = [{ role: "user", content: "Hi" }];

/** @param {Record<string, any>} given Python's names of the arguments */
const options = (given) => ({
  tools: given.tools,
  documents: given.documents,
  variables: given.variables,
  addGenerationPrompt: given.add_generation_prompt,
  continueFinalMessage: given.continue_final_message,
});

test("formats are loaded for the templates that have them, and refused without", async () => {
  const form = new ChatTemplate(library, "{{ '{}-%s'.format(messages|length) % 'a' }}");
  assert.match(outcome(() => form.render(USER)).error, /'format' of a str|a format is not supported/);
  for (const plain of ["{%- if messages -%}x{% endif %}%}", "{{ messages[0].content }}"]) {
    await new ChatTemplate(library, plain).prepare();
    assert.throws(() => form.render(USER), { name: "TemplateError" }, plain);
  }
  await form.prepare();
  assert.equal(form.render(USER), "1-a");
});

/** What was made, or the message of the TemplateError. @param {() => string} make */
function outcome(make) {
  try {
    return make();
  } catch (error) {
    assert.equal(/** @type {Error} */ (error).name, "TemplateError", String(/** @type {Error} */ (error).stack));
    return { error: /** @type {Error} */ (error).message };
  }
}

for (const { name, source, tokens, prompts } of vectors.goldens) {
  test(`${name}: prompts are those of transformers`, async () => {
    const template = new ChatTemplate(library, source, { tokens, clock });
    await template.prepare();
    for (const { title, given, expected, gap } of prompts) {
      const before = JSON.stringify(given);
      const found = outcome(() => template.render(given.messages, options(given)));
      const words = gap ?? expected.refused ?? expected.failed;
      if (words === undefined) assert.equal(found, expected, title);
      else assert.ok(found.error?.includes(words), `${title}: ${JSON.stringify(found)}, not an error with '${words}'`);
      assert.equal(JSON.stringify(given), before, `${title} changed its messages`);
    }
  });
}

test("expressions give what Jinja gives, or an error", () => {
  for (const { source, expected } of vectors.expressions) {
    const found = outcome(() => new SandboxedTemplate(library, source, clock).render(vectors.variables));
    if (typeof expected === "string") assert.equal(found, expected, source);
    else assert.equal(typeof found, "object", `${source} gave ${JSON.stringify(found)}, expected an error`);
  }
});

test("no operation on any kind of value gives another text than in Jinja", () => {
  let made = 0;
  for (const [source, expected] of vectors.grid) {
    if (expected?.includes(" at 0x")) continue; // an address in memory
    const found = outcome(() => new SandboxedTemplate(library, source, clock).render(vectors.variables));
    if (typeof found === "string") assert.equal(found, expected, source);
    made += Number(typeof found === "string");
  }
  assert.ok(made > vectors.grid.length / 4, `${made} of ${vectors.grid.length} are no errors`);
});

test("an attack ends in an error, and reaches nothing of JavaScript's", () => {
  for (const source of vectors.attacks) {
    const messages = [{ role: "user", content: "Hi" }];
    const found = outcome(() => new SandboxedTemplate(library, source, clock).render({ messages, x: {} }));
    assert.equal(typeof found, "object", `${source} gave ${JSON.stringify(found)}`);
    assert.deepEqual(messages, USER);
  }
});

for (const [source, why] of Object.entries(vectors.gaps)) {
  test(`not done here, and said: ${source}`, () => {
    assert.equal(typeof outcome(() => new SandboxedTemplate(library, source, clock).render({})), "object", String(why));
  });
}

test("text in messages is never read as a template", () => {
  for (const content of ["{{ 7 * 7 }}{% set x = 1 %}{# no #}\r\n", "$& $1 {{''}}", "\u2028\ufeff \0"]) {
    assert.equal(new ChatTemplate(library, "{{ messages[0].content }}").render([{ role: "user", content }]), content);
  }
});

test("the template is found where transformers finds it", () => {
  for (const { texts, plain, tools } of vectors.places) {
    const template = ChatTemplate.of(library, new Map(Object.entries(texts)));
    assert.deepEqual([template.render(USER), template.render(USER, { tools: [] })], [plain, tools]);
  }
  const none = () => ChatTemplate.of(library, new Map());
  assert.throws(none, { name: "TemplateError", message: /no chat template.*Generate from a plain prompt/ });
  const other = new ChatTemplate(library, { rag: "" });
  assert.throws(() => other.render(USER), { name: "TemplateError", message: /no chat template named 'default', only 'rag'/ });
});

test("tools that a template does not show are in the messages, as in Python", () => {
  let prompts = 0;
  for (const { source, tokens, gaps, prompts: expected, toolSchemas } of vectors.tools) {
    const template = new ChatTemplate(library, source, { tokens, clock });
    const found = templateGaps(template);
    assert.deepEqual({ ...found, hidesTools: [...found.hidesTools].sort() }, gaps, source);
    for (const [messages, prompt] of expected) {
      assert.equal(template.render(filled(found, messages, toolSchemas)), prompt);
      prompts += 1;
    }
  }
  assert.ok(prompts > 20, "most templates without tools take these conversations");
});

test("messages that cannot be meant are refused by their place", () => {
  /** @type {[any, RegExp][]} */
  const wrong = [
    [[], /at least one message/],
    ["Hi", /at least one message/],
    [{ role: "user" }, /at least one message/],
    [[...USER, "Hi"], /messages\[1\] is "Hi"/],
    [[...USER, { content: "Hi" }], /messages\[1\]\['role'\] is undefined/],
    [[{ role: 3 }], /messages\[0\]\['role'\] is 3/],
    [[{ role: "user", content: [{ image: new Date() }] }], /messages\[0\]\['content'\]\[0\]\['image'\] is a Date/],
    [[{ role: "user", content: () => 1 }], /is a Function/],
    [[{ role: "user", content: new Map([[1, "x"]]) }], /has the key 1/],
  ];
  const template = new ChatTemplate(library, "");
  for (const [messages, message] of wrong) assert.throws(() => template.render(messages), { name: "RangeError", message });
  /** @type {Record<string, unknown>} */
  const loop = { role: "user" };
  loop.content = [loop];
  assert.throws(() => template.render([loop]), { name: "RangeError", message: /holds itself/ });
  assert.throws(() => template.render(USER, { variables: { tools: [] } }), { name: "RangeError", message: /cannot set 'tools'/ });
  const odd = /** @type {any} */ ([{}, "x"]);
  assert.throws(() => template.render(USER, { tools: odd }), { name: "RangeError", message: /tools\[1\] is "x"/ });
  assert.throws(() => template.render(USER, { documents: odd }), { name: "RangeError", message: /documents\[1\] is "x"/ });
  assert.throws(() => template.render([{ role: "assistant" }], { continueFinalMessage: true }), { name: "RangeError", message: /no text under 'content'/ });
  assert.throws(() => template.render(USER, { continueFinalMessage: true }), { name: "TemplateError", message: /does not write the last message/ });
});

test("a very long text is stripped at once", () => {
  const content = `${" ".repeat(200_000)}x${" ".repeat(200_000)}`;
  assert.equal(new ChatTemplate(library, "{{ messages[0].content | trim }}").render([{ role: "user", content: `a${content}` }]).length, 200_002);
});

test("defaults are those of Python", async () => {
  for (const { text, expected, words } of vectors.defaults) {
    const read = readDefaults(new Map(text === null ? [] : [["generation_config.json", text]]));
    if (!expected) {
      await assert.rejects(read, { name: "PackageError", message: new RegExp(`generation_config.json.*${words}`) }, text);
      continue;
    }
    const { sampling, max_tokens, bans } = await read;
    const biases = sampling.logit_bias.map(([token]) => token);
    assert.deepEqual({ sampling: { ...sampling, logit_bias: biases }, max_tokens, bans: bans !== null }, expected, text);
  }
});
