// What both engines have to give over a worker behind a MessageChannel: OpenAI's shapes, grammars, the same replies.

import assert from "node:assert/strict";
import test, { after } from "node:test";

import { all, endWorkers, given, loaded, lose, madeBridge, settled } from "./api.mjs";

after(endWorkers);

const SAID = [{ role: "user", content: "hello there" }];
const REFUSED = { stop_tokens: [99999999], seed: 2 ** 53, tools: {}, documents: [5], variables: 3, response_format: "json" };
const GREEDY = { temperature: 0, stop_tokens: [] };
const ENGINES = /** @type {const} */ (given.urls.wheel ? ["javascript", "python"] : ["javascript"]);

/** A bridge whose model has other texts, too. @param {Record<string, string>} texts */
const withTexts = (texts) => madeBridge({ ...given.model, texts: { ...given.model.texts, ...texts } });

test("completions have OpenAI's shapes", async () => {
  const { llm } = await loaded();
  const asked = { messages: SAID, temperature: 0, max_completion_tokens: 6, model: "any" };
  const whole = await llm.chat.completions.create(asked);
  assert.equal(whole.object, "chat.completion");
  assert.equal(whole.choices[0].finish_reason, "length");
  const { usage } = whole;
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  assert.equal(usage.completion_tokens, 6);
  const pieces = await all(await llm.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } }));
  assert.equal(pieces.map(({ choices }) => choices[0]?.delta.content ?? "").join(""), whole.choices[0].message.content);
  assert.equal(pieces[0].choices[0].delta.role, "assistant");
  const counted = pieces[pieces.length - 1];
  assert.deepEqual(counted.choices, []);
  assert.equal(counted.usage?.prompt_tokens_details.cached_tokens, usage.prompt_tokens - 1);
  assert.equal(pieces[pieces.length - 2].choices[0].finish_reason, "length");
  const parts = await llm.chat.completions.create({ ...asked, messages: [{ role: "user", content: [{ type: "text", text: "hello there" }] }] });
  assert.equal(parts.choices[0].message.content, whole.choices[0].message.content);
  const bad = (/** @type {any} */ more) => llm.chat.completions.create({ ...asked, ...more });
  await assert.rejects(bad({ n: 2 }), /n is 2; expected 1/);
  await assert.rejects(bad({ best_of: 2 }), /no parameter 'best_of'/);
  await assert.rejects(bad({ tools: [{ type: "function", function: { name: "f" } }] }), /'tools' is not done here/);
  await assert.rejects(bad({ tool_choice: "required" }), /'tool_choice' is not done here/);
  await assert.rejects(bad({ logprobs: true }), /'logprobs' is not done here/);
  await assert.rejects(bad({ messages: [{ role: "user", content: [{ type: "image_url" }] }] }), /reads text only/);
  await assert.rejects(llm.chat.completions.create(asked, { signal: AbortSignal.abort() }), { name: "AbortError" });
  llm.close();
});

test("what asks for nothing, or has no effect on the text, is accepted by completions", async () => {
  const { llm } = await loaded();
  const asked = { messages: SAID, temperature: 0, max_tokens: 3 };
  const { choices } = await llm.chat.completions.create(asked);
  const off = { logprobs: false, top_logprobs: 0, tools: [], n: 1, parallel_tool_calls: true, modalities: ["text"] };
  const service = { user: "me", metadata: { a: "b" }, store: false, service_tier: "auto", safety_identifier: "x", verbosity: "low",
    prompt_cache_key: "x", prompt_cache_retention: "24h" };
  for (const more of [{ ...off, ...service }, { tool_choice: "none" }, { tool_choice: "auto" }]) {
    const found = await llm.chat.completions.create({ ...asked, ...more });
    assert.deepEqual(found.choices, choices);
  }
  llm.close();
});

test("a response_format holds the reply to a schema", async () => {
  const { llm } = await loaded();
  const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
  const response_format = { type: "json_schema", json_schema: { name: "x", schema } };
  const { choices } = await llm.chat.completions.create({ messages: SAID, response_format, temperature: 1, seed: 3, max_tokens: 100 });
  assert.equal(typeof JSON.parse(choices[0].message.content).ok, "boolean");
  assert.equal(choices[0].finish_reason, "stop");
  await assert.rejects(llm.generate("x", { response_format: { type: "xml" } }), /response_format.type is "xml"/);
  llm.close();
});

test("both engines give the same", { skip: given.urls.wheel ? false : "Pyodide is not here" }, async () => {
  const [script, python] = await Promise.all([loaded(), loaded({ engine: "python" })]);
  assert.deepEqual({ ...python.llm.device }, { ...script.llm.device });
  const cases = [
    ["the quick", { seed: 3, max_tokens: 20, logprobs: 2, stop_tokens: [] }],
    ["the quick", { seed: 4, temperature: 0.7, top_p: 0.8, logit_bias: { 97: 5, 98: -Infinity }, max_tokens: 20 }],
    [SAID, { max_tokens: 10, seed: 5, stop: ["e", "<end>"] }],
    [[1, 2, 3], { seed: 6 }],
    [SAID, { seed: 7, max_tokens: 60, response_format: { type: "json_schema", json_schema: { schema: { enum: ["red", "blue"] } } } }],
  ];
  for (const [prompt, options] of cases) {
    const [one, other] = [await script.llm.generate(/** @type {any} */ (prompt), options), await python.llm.generate(/** @type {any} */ (prompt), options)];
    assert.deepEqual([other.text, other.tokens, other.finish_reason, other.stopped_by], [one.text, one.tokens, one.finish_reason, one.stopped_by]);
    assert.equal(other.statistics.cached_tokens, one.statistics.cached_tokens);
    one.logprobs.forEach((logprob, place) => assert.ok(Math.abs(logprob - other.logprobs[place]) < 1e-5));
  }
  const long = new Array(given.model.context).fill(1);
  await assert.rejects(python.llm.generate(long), { name: "ContextFull", tokens: long.length, limit: given.model.context });
  await assert.rejects(python.llm.generate("x", { top_p: 7 }), { name: "RangeError", message: /top_p is 7/ });
  await assert.rejects(python.llm.generate("x", { temperature: NaN }), { name: "RangeError", message: /temperature is/ });
  for (const [name, value] of Object.entries(REFUSED)) {
    for (const { llm } of [script, python]) {
      await assert.rejects(llm.generate(SAID, { [name]: value }), { name: "RangeError", message: new RegExp(`^${name} is .*; expected`) }, name);
    }
  }
  const talk = python.llm.conversation({ system: "be brief" });
  const first = await all(talk.say("hello", { ...GREEDY, max_tokens: 5 }));
  const second = await all(talk.say("and now", { ...GREEDY, max_tokens: 5 }));
  assert.ok(second[0].statistics.cached_tokens >= first[0].statistics.prompt_tokens - 3); // but for "[>]"
  talk.close();
  python.engine().hold();
  const controller = new AbortController();
  const running = python.llm.generate("x", { signal: controller.signal });
  setTimeout(() => controller.abort(), 30);
  assert.equal((await running).finish_reason, "cancelled");
  python.engine().release();
  assert.equal((await python.llm.generate("x", { ...GREEDY, max_tokens: 2 })).tokens.length, 2);
  lose(python.engine());
  await settled();
  assert.equal((await python.llm.generate("x", { ...GREEDY, max_tokens: 2 })).tokens.length, 2);
  script.llm.close();
  python.llm.close();
});

for (const engine of ENGINES) {
  test(`a role that the chat template leaves out is refused: ${engine}`, async () => {
    const written = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.content | trim }}>{% endif %}{% endfor %}";
    const { llm } = await loaded({ engine }, withTexts({ "chat_template.jinja": written }));
    const message = "messages[1]['role'] is 'usr', a role that the chat template leaves out of the prompt; expected one of " +
      "system, developer, user, assistant, tool.";
    for (const content of ["list files", [{ type: "text", text: "list files" }]]) {
      await assert.rejects(llm.generate([...SAID, { role: "usr", content }]), { name: "RangeError", message });
    }
    for (const shown of [{ role: "usr", content: " " }, { role: "usr" }, { role: "usr", content: " hello there\n" }, { role: "tool", content: "x" }]) {
      assert.equal((await llm.generate([...SAID, shown], { ...GREEDY, max_tokens: 1 })).tokens.length, 1, JSON.stringify(shown));
    }
    const talk = llm.conversation();
    await assert.rejects(all(talk.say({ role: "usr", content: "list files" })), { name: "RangeError" });
    assert.equal(talk.messages.length, 0);
    llm.close();
    const named = await loaded({ engine }, withTexts({ "chat_template.jinja": `${written}{# usr #}` })); // it may write its text otherwise
    assert.equal((await named.llm.generate([{ role: "usr", content: "list" }, ...SAID], { ...GREEDY, max_tokens: 1 })).tokens.length, 1);
    named.llm.close();
  });

  test(`texts in parts are one text where the template writes no parts: ${engine}`, async () => {
    const { llm } = await loaded({ engine });
    const asked = (/** @type {unknown} */ content) => llm.generate([{ role: "user", content }], { ...GREEDY, max_tokens: 3 });
    const [one, other] = [await asked("hello there"), await asked([{ type: "text", text: "hello " }, { type: "text", text: "there" }])];
    assert.equal(other.statistics.prompt_tokens, one.statistics.prompt_tokens);
    assert.equal(other.statistics.cached_tokens, one.statistics.prompt_tokens - 1); // it is the same prompt
    for (const [part, found] of [[{ type: "audio" }, "'audio'"], [{ type: "text" }, "'text'"]]) {
      const message = new RegExp(`^messages\\[0\\] has a part of the type ${found}; expected .*; there is no other\\.$`);
      await assert.rejects(asked([{ type: "text", text: "a" }, part]), { name: "RangeError", message });
    }
    llm.close();
    const written = "{% for m in messages %}{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}";
    const parted = await loaded({ engine }, withTexts({ "chat_template.jinja": written }));
    const content = [{ type: "text", text: "ab" }, { type: "text", text: "cd" }];
    const reply = await parted.llm.generate([{ role: "user", content }], { ...GREEDY, max_tokens: 1 });
    assert.equal(reply.statistics.prompt_tokens, "ab;cd;".length);
    parted.llm.close();
  });

  test(`a context bounds the prompt and its reply: ${engine}`, async () => {
    const { llm, bridge } = await loaded({ engine, context: 24 });
    assert.equal(llm.context, 24);
    assert.equal(/** @type {any} */ (bridge.asked.at(-1)).context, 24);
    const reply = await llm.generate([1, 2, 3, 4], { ...GREEDY, max_tokens: 99 });
    assert.deepEqual([reply.tokens.length, reply.finish_reason], [20, "context"]);
    const full = { name: "ContextFull", tokens: 30, limit: 24 };
    await assert.rejects(llm.generate(new Array(30).fill(7)), full);
    llm.close();
  });
}

test("what a model bans does not come, and is not guessed: the same with both engines", async () => {
  const words = { bad_words_ids: [[98], [101, 102]], suppress_tokens: [97, 256] };
  const options = { temperature: 1, seed: 8, max_tokens: 60, stop_tokens: [] };
  const tokens = async (/** @type {any} */ engine, /** @type {any} */ config, /** @type {any} */ prompt, /** @type {object} */ more) => {
    const { llm, engine: opened } = await loaded({ engine }, withTexts({ "generation_config.json": JSON.stringify(config) }));
    Object.assign(opened(), { captures: true, draws: "those before" });
    const reply = await llm.generate(prompt, { ...options, ...more });
    llm.close();
    return { reply, draws: opened().draws };
  };
  const found = [];
  for (const engine of ENGINES) {
    const { reply, draws } = await tokens(engine, { no_repeat_ngram_size: 1, ...words }, "quickly", {});
    assert.equal(draws, null);
    assert.equal(new Set([...reply.tokens, ...new TextEncoder().encode("quickly")]).size, 67);
    assert.ok(![97, 98, 256].some((token) => reply.tokens.includes(token)));
    const response_format = { type: "json_schema", json_schema: { schema: { enum: ["red", "blue"] } } };
    assert.equal((await tokens(engine, words, SAID, { response_format })).reply.text, '"red"'); // "blue" begins with token 98
    found.push([reply.tokens, (await tokens(engine, { no_repeat_ngram_size: 2, ...words }, SAID, {})).reply.tokens]);
    const free = await tokens(engine, {}, "quickly", {});
    assert.notEqual(free.draws, null);
    assert.ok(new Set(free.reply.tokens).size < 60);
    const off = await tokens(engine, { no_repeat_ngram_size: 1 }, "quickly", { no_repeat_ngram: 0 });
    assert.deepEqual(off.reply.tokens, free.reply.tokens);
    assert.notEqual(off.draws, null);
    const on = await tokens(engine, {}, "quickly", { no_repeat_ngram: 1 });
    assert.equal(on.draws, null);
    assert.equal(new Set([...on.reply.tokens, ...new TextEncoder().encode("quickly")]).size, 67);
    await assert.rejects(tokens(engine, {}, "quickly", { no_repeat_ngram: 1.5 }), { message: /no_repeat_ngram is 1.5; expected/ });
  }
  assert.deepEqual(found.at(-1), found[0]);
});
