// Stop strings, streams of text and generations are in JavaScript what they are in Python: tests/golden/web_rule.json,
// replayed by node --test.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as errors from "../../../bindings_web/src/errors.js";
import { Generation, run } from "../../../bindings_web/src/sampling/generation.js";
import { ArrayLogits } from "../../../bindings_web/src/sampling/array_logits.js";
import { Sampler } from "../../../bindings_web/src/sampling/sampler.js";
import { Sampling } from "../../../bindings_web/src/sampling/options.js";
import { StopStrings, TextStream } from "../../../bindings_web/src/sampling/text_stream.js";
import { CODECS, END, makeRow, VOCABULARY } from "./rule_vectors.mjs";

const golden = JSON.parse(readFileSync(new URL("../../golden/web_rule.json", import.meta.url), "utf8"));
const ATOL = 1e-5; // Python's weights and their sums are float32, to 1e-7 of each

/** @param {number} found @param {number} expected @param {string} what */
function close(found, expected, what) {
  assert.ok(Math.abs(found - expected) <= ATOL, `${what}: ${found}, Python has ${expected}`);
}

test("stop strings are found as Python finds them", () => {
  for (const { strings, pieces, out, rest, matched } of golden.stops) {
    const stops = new StopStrings(strings);
    assert.deepEqual(
      pieces.map((/** @type {string} */ piece) => stops.push(piece)),
      out,
      `${strings} in ${pieces}`,
    );
    assert.deepEqual([stops.flush(), stops.matched], [rest, matched]);
  }
  assert.throws(() => new StopStrings([""]), /RangeError: stop strings are a list of texts that are not empty/);
});

test("text comes out of tokens as it does in Python", () => {
  for (const { codec, tokens, special, out, rest } of golden.streams) {
    const stream = new TextStream(CODECS[codec], { special });
    assert.deepEqual(
      tokens.map((/** @type {number} */ token) => stream.push(token)),
      out,
      `${codec}: ${tokens}`,
    );
    assert.equal(stream.flush(), rest);
    assert.equal(out.join("") + rest, CODECS[codec].decode(tokens, { special }));
  }
});

golden.generations.forEach(
  (
    /** @type {any} */ { script, sampling, stops, limit, limit_reason, top_count, cancel_after, chunks },
    /** @type {number} */ place,
  ) => {
    test(`generation ${place} is Python's, chunk by chunk`, async () => {
      const generation = new Generation({
        sampler: new Sampler(new Sampling(sampling), [1, 2, 3]),
        text: new TextStream(CODECS.bytes),
        stops: new StopStrings(stops),
        stopTokens: [END],
        limit,
        limitReason: limit_reason,
        topCount: top_count,
        statistics: { prompt_tokens: 3, cached_tokens: 0 },
      });
      let step = -1;
      const feed = async () => {
        const row = makeRow("normal", VOCABULARY, 500 + step);
        row[script.at(step % script.length)] += 9;
        step++;
        return new ArrayLogits(row);
      };
      const cancel = new AbortController();
      if (cancel_after === 0) cancel.abort();
      const found = [];
      for await (const chunk of run(generation, feed, [[1, 2], [3]], cancel.signal)) {
        found.push(chunk);
        if (found.length === cancel_after) cancel.abort();
      }
      assert.equal(found.length, chunks.length);
      found.forEach((chunk, index) => {
        const [text, token, logprob, top, finish_reason, stopped_by, tokens] = chunks[index];
        assert.deepEqual(
          [chunk.text, chunk.token, chunk.finish_reason, chunk.stopped_by],
          [text, token, finish_reason, stopped_by],
        );
        assert.equal(chunk.statistics.tokens, tokens);
        assert.deepEqual(
          chunk.top_logprobs.map((pick) => pick.token),
          top.map((/** @type {number[]} */ pick) => pick[0]),
        );
        chunk.top_logprobs.forEach((pick, rank) => close(pick.logprob, top[rank][1], "top_logprobs"));
        if (token === null) assert.equal(chunk.logprob, null);
        else close(chunk.logprob ?? NaN, logprob, "logprob");
        assert.deepEqual(structuredClone(chunk), chunk);
      });
    });
  },
);

test("times are those of feeds and decisions, not of the consumer", async (context) => {
  let clock = 5000;
  context.mock.method(performance, "now", () => clock);
  const parts = {
    sampler: new Sampler(new Sampling({ temperature: 0 })),
    text: new TextStream(CODECS.bytes),
    stops: new StopStrings([]),
  };
  const generation = new Generation({
    ...parts,
    stopTokens: [],
    limit: 2,
    limitReason: "length",
    statistics: { prompt_tokens: 1, cached_tokens: 0 },
  });
  const feed = async () => {
    clock += 20;
    return new ArrayLogits(makeRow("normal", VOCABULARY, 1));
  };
  for await (const _ of run(generation, feed, [[1], [2]])) clock += 300;
  const { prefill_s, decode_s } = generation.statistics;
  assert.deepEqual([prefill_s, decode_s], [0.04, 0.02]);
});

test("an error of the feed goes through, an interrupted one ends the generation", async () => {
  const parts = {
    text: new TextStream(CODECS.bytes),
    stops: new StopStrings([]),
    stopTokens: [],
    limit: 9,
    statistics: { prompt_tokens: 1, cached_tokens: 0 },
  };
  const generation = () => new Generation({ ...parts, sampler: new Sampler(new Sampling()), limitReason: "length" });
  const failing = (/** @type {Error} */ error) => run(generation(), () => Promise.reject(error), [[1]]).next();
  await assert.rejects(failing(new errors.DeviceError("lost")), errors.DeviceError);
  assert.equal((await failing(new errors.Interrupted())).value?.finish_reason, "cancelled");
  await assert.rejects(run(generation(), () => Promise.reject(new Error("never")), []).next(), RangeError);
});

test("logits that are all equal are an error in Python's words, as likely ones by chance are not", () => {
  const accept = (/** @type {number[]} */ row, /** @type {object} */ options) => {
    const generation = new Generation({
      sampler: new Sampler(new Sampling(options)),
      text: new TextStream(CODECS.bytes),
      stops: new StopStrings([]),
      stopTokens: [],
      limit: 9,
      limitReason: "length",
      statistics: { prompt_tokens: 1, cached_tokens: 0 },
    });
    return generation.accept(new ArrayLogits(Float32Array.from(row)));
  };
  for (const options of [{ temperature: 0 }, { temperature: 1, seed: 1 }]) {
    for (const logit of [0, -3.5]) {
      const equal = () => accept(new Array(300).fill(logit), options);
      assert.throws(equal, errors.DeviceError);
      assert.throws(equal, new RegExp(`all 300 logits of the model are ${logit}; expected different ones. Its weights`));
    }
  }
  const uniformByChance = [0, Math.log(2), Math.log(0.5), -Math.log(2)]; // of 4 tokens, in all 4
  assert.equal(accept(uniformByChance, { temperature: 0, logit_bias: { 0: 9 } }).token, 0);
});

test("errors keep their class, name and numbers across threads", () => {
  const made = [
    new errors.PackageError("p"),
    new errors.TemplateError("t"),
    new errors.DeviceError("d"),
    new errors.Interrupted(),
    new errors.DeviceUnavailable("u", { tried: [["webgpu", "no adapter", "enable it"]] }),
    new errors.ContextFull("c", { tokens: 9, limit: 8 }),
    new RangeError("r"),
  ];
  for (const error of made) {
    const again = errors.remadeError(structuredClone(errors.postedError(error)));
    assert.equal(again.constructor, error.constructor);
    assert.equal(error.name, error.constructor.name);
    assert.deepEqual(
      { ...again, message: again.message, stack: again.stack },
      { ...error, message: error.message, stack: error.stack },
    );
  }
  assert.equal(errors.remadeError({ name: "AbortError", message: "gone" }).name, "AbortError");
});
