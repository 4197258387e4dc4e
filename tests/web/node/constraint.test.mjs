// The rule in JavaScript under a grammar: tests/sampling/test_constraint.py has the same for Python.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Grammar } from "../../../bindings_web/src/grammar/grammar.js";
import { Generation } from "../../../bindings_web/src/sampling/generation.js";
import { ArrayLogits } from "../../../bindings_web/src/sampling/array_logits.js";
import { Sampler } from "../../../bindings_web/src/sampling/sampler.js";
import { Sampling } from "../../../bindings_web/src/sampling/options.js";
import { StopStrings, TextStream } from "../../../bindings_web/src/sampling/text_stream.js";
import { CODECS, END, makeRow, VOCABULARY } from "./rule_vectors.mjs";

const DATE = /^[0-9]{2}\.[0-9]{2}$/;
// the bytes as tokens 0 to 255, and the end
const bytes = Array.from({ length: 256 }, (_, byte) => [`<0x${byte.toString(16).padStart(2, "0")}>`, byte]);
const tokenizer = { model: { vocab: Object.fromEntries(bytes) }, decoder: { type: "ByteFallback" } };
const model = { texts: new Map([["tokenizer.json", JSON.stringify(tokenizer)]]), stopTokens: [END] };
const date = Grammar.compile({ regex: DATE.source.slice(1, -1) }, model);
const list = Grammar.compile({ regex: "-?[0-9](,[0-9])*" }, model);

function rule(grammar, options = { temperature: 0 }, limit = 40) {
  const constraint = grammar && grammar.matcher();
  return new Generation({
    sampler: new Sampler(new Sampling(options), [], { constraint }),
    text: new TextStream(CODECS.bytes),
    stops: new StopStrings([]),
    stopTokens: [END],
    limit,
    limitReason: "length",
    statistics: { prompt_tokens: 1, cached_tokens: 0 },
  });
}

function reply(generation, rows) {
  let text = "";
  for (const row of rows) {
    const chunk = generation.accept(row);
    text += chunk.text;
    if (chunk.finish_reason) return { ...chunk, text };
  }
  return assert.fail(`no end of ${text}`);
}

const peaked = (token) => new ArrayLogits(new Float32Array(VOCABULARY).fill(0).fill(8, token, token + 1));
const rows = (seed) =>
  Array.from({ length: 40 }, (_, step) => new ArrayLogits(makeRow("normal", VOCABULARY, 1000 * seed + step + 1)));
const OPTIONS = [
  { temperature: 0 },
  { temperature: 5 },
  { temperature: 1, top_p: 0.5 },
  { temperature: 2, top_k: 40, min_p: 0.2 },
  { typical_p: 0.3 },
  { repetition_penalty: 1.3, presence_penalty: 2 },
  { temperature: 0, logit_bias: { 120: 100, [END]: -50 } },
];

test("a reply keeps to the grammar under every sampling", () => {
  for (const options of OPTIONS) {
    for (let seed = 0; seed < 20; seed++) {
      const dated = reply(rule(date, { ...options, seed }), rows(seed));
      assert.match(dated.text, DATE);
      assert.deepEqual([dated.finish_reason, dated.stopped_by], ["stop", null]);
      const listed = reply(rule(list, { ...options, seed }), rows(seed));
      if (listed.finish_reason === "stop") assert.match(listed.text, /^-?[0-9](,[0-9])*$/);
    }
  }
});

test("log probabilities are the model's own", () => {
  const row = new Float32Array(VOCABULARY);
  row["4".charCodeAt(0)] = Math.log(2);
  const { token, logprob } = rule(date).accept(new ArrayLogits(row));
  assert.equal(token, "4".charCodeAt(0));
  assert.ok(Math.abs(logprob - Math.log(2 / (VOCABULARY + 1))) < 1e-6);
});

test("a stop token ends a reply that could go on, and no other", () => {
  const { text, stopped_by } = reply(rule(list), [peaked(0x37), peaked(END)]);
  assert.deepEqual([text, stopped_by], ["7", END]);
  assert.equal(reply(rule(date), Array(5).fill(peaked(END))).text, "00.00");
});

test("the limit ends a reply that is not whole as length", () => {
  assert.equal(reply(rule(date, undefined, 3), rows(1)).finish_reason, "length");
  assert.equal(reply(rule(date, undefined, 5), rows(1)).finish_reason, "stop");
});

test("a grammar that allows no token is an error", () => {
  const texts = new Map([["tokenizer.json", JSON.stringify({ ...tokenizer, model: { vocab: { "<0x41>": 65 } } })]]);
  const dead = Grammar.compile({ regex: "B" }, { texts, stopTokens: [END] });
  assert.throws(() => rule(dead).accept(peaked(65)), /no token is allowed/);
});

test("masked forbids the tokens without a bit, and those past the last word", () => {
  for (const size of [1, 31, 32, 33, 64, 100, 257]) {
    for (const words of [0, 1, 2, 5, 12]) {
      const logits = makeRow("normal", size, size + words);
      const bits = Uint32Array.from(
        { length: words },
        (_, place) => [0xffffffff, 0, 0xdeadbeef, 0x80000001][place % 4],
      );
      const expected = logits.map((logit, token) =>
        ((bits[token >> 5] ?? 0) >>> (token & 31)) & 1 ? logit : -Infinity,
      );
      const every = Array.from(logits.keys());
      assert.deepEqual(new ArrayLogits(logits).masked(bits).values(every), Array.from(expected));
      assert.deepEqual(new ArrayLogits(logits).masked(new Int32Array(bits)).values(every), Array.from(expected));
      assert.deepEqual(new ArrayLogits(logits).values(every), Array.from(logits));
    }
  }
  assert.throws(() => new ArrayLogits(new Float32Array(2)).masked(new Uint32Array(1)).top(1), RangeError);
});
