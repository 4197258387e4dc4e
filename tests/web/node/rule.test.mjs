// The rule in JavaScript draws the tokens that Python draws: tests/golden/web_rule.json, replayed by node --test.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { DeviceError, ImageIsGone } from "../../../bindings_web/src/errors.js";
import { Session } from "../../../bindings_web/src/engine/session.js";
import { drawsBySeed, drawsOf } from "../../../bindings_web/src/sampling/draws.js";
import { Random } from "../../../bindings_web/src/sampling/mersenne_twister.js";
import { ArrayLogits } from "../../../bindings_web/src/sampling/array_logits.js";
import { Sampler, truncated } from "../../../bindings_web/src/sampling/sampler.js";
import { Sampling } from "../../../bindings_web/src/sampling/options.js";
import { readDefaults } from "../../../bindings_web/src/package/generation_config.js";
import { bansOf } from "../../../bindings_web/src/sampling/bans.js";
import { exponential, NEGLIGIBLE } from "../../../bindings_web/src/sampling/softmax.js";
import { makeRow } from "./rule_vectors.mjs";

const golden = JSON.parse(readFileSync(new URL("../../golden/web_rule.json", import.meta.url), "utf8"));
const ATOL = 1e-5; // Python's weights and their sums are float32, to 1e-7 of each

/** @param {number} found @param {number} expected @param {string} what */
function close(found, expected, what) {
  assert.ok(Math.abs(found - expected) <= ATOL, `${what}: ${found}, Python has ${expected}`);
}

test("random numbers are CPython's", () => {
  for (const { seed, first, last } of golden.random) {
    const random = new Random(BigInt(seed));
    const numbers = Array.from({ length: 1000 }, () => random.random());
    assert.deepEqual([...numbers.slice(0, 4), ...numbers.slice(-4)], [...first, ...last], `seed ${seed}`);
  }
  assert.equal(new Random(42).random(), new Random(42n).random());
  assert.notEqual(new Random().random(), new Random().random());
  assert.throws(() => new Random(1.5), /seed is 1.5; expected a whole number/);
  assert.throws(() => new Random(2 ** 53), /has to be a BigInt/);
});

for (const { shape, size, top, logsumexp, mean, deviation, draws, nearer } of golden.rows) {
  test(`a ${shape} row of ${size} answers as Python's`, () => {
    const row = new ArrayLogits(makeRow(shape, size, size));
    for (const [count, tokens] of top) {
      const best = row.top(count);
      assert.deepEqual([...best.tokens].slice(-tokens.length), tokens, `top(${count})`);
      assert.deepEqual([...best.logits], row.values(best.tokens));
    }
    for (const [temperature, expected] of logsumexp) close(row.logsumexp(temperature), expected, "logsumexp");
    for (const [temperature, expected] of mean) close(row.mean(temperature), expected, "mean");
    close(row.deviation(), deviation, "deviation");
    for (const [temperature, uniform, token] of draws) {
      assert.equal(row.draw(temperature, uniform), token, `draw(${temperature}, ${uniform})`);
    }
    for (const [token, centre, mass] of nearer) {
      close(row.massNearer(token, centre ?? Infinity, 0.9), mass, `mass nearer than ${token} to ${centre}`);
    }
  });
}

test("a device is told the numbers that will be drawn, and nothing where more than the row decides", async () => {
  const [random, other] = [new Random(7), new Random(7)];
  const numbers = [0, 1, 2].map(() => other.random());
  assert.deepEqual([2, 0, 1].map((place) => random.peek(place)), [numbers[2], numbers[0], numbers[1]]);
  assert.deepEqual([0, 1, 2, 3].map(() => random.random()), [...numbers, other.random()]);
  for (const more of [{ typical_p: 0.9 }, { repetition_penalty: 1.1 }, { logit_bias: [[3, 1]] }, { presence_penalty: 1 }]) {
    assert.equal(drawsOf(new Sampling({ seed: 1, ...more }), random), null, JSON.stringify(more));
  }
  assert.equal(drawsOf(new Sampling({ temperature: 0 }), random)?.temperature, 0);
});

test("draws by a seed follow those of another sampler, from its first row on", async () => {
  /** @type {(number | undefined)[]} */
  const told = []; // the number for each row, before it is drawn
  const steps = /** @type {any} */ ({
    capacity: 99,
    start: (/** @type {number} */ position) => position,
    async run(/** @type {number[]} */ _, /** @type {number} */ __, /** @type {any} */ draws) {
      told.push(draws?.uniform(0));
      return Float32Array.of(0, 1, 2, 3);
    },
  });
  /** @type {any} */
  let draws = null;
  const alone = (/** @type {() => any} */ work) => work();
  const session = new Session(steps, { context: 99, vocabulary: 4, chunk: 2, remedy: "", fail: async (error) => error,
    draws: () => draws, images: () => null, alone, after: alone }, 0);
  for (const seed of [3, 4]) { // the second request begins behind the last row of the first, which was asked
    const sampler = new Sampler(new Sampling({ seed }));
    draws = drawsBySeed(new Sampling({ seed }), 5);
    told.length = 0;
    session.rewind(0);
    let row = await session.feed([1, 2, 3]); // two pieces
    row = await session.feed([0]); // and a third, before anything is drawn
    for (let step = 0; step < 3; step++) row = await session.feed([sampler.pick(row).token]);
    sampler.pick(row);
    const random = new Random(seed);
    const [first, ...others] = [0, 1, 2, 3].map(() => random.random());
    assert.deepEqual(told, [first, first, first, ...others]);
    assert.equal(draws?.left?.(), 2); // three were fed again
  }
});

test("a session ends its engine for what the device does wrong, not for an image that is gone", async () => {
  /** @type {unknown[]} */
  const failed = [];
  let wrong = /** @type {Error} */ (new ImageIsGone("gone"));
  const steps = /** @type {any} */ ({
    capacity: 99,
    start: (/** @type {number} */ position) => position,
    run: async () => Float32Array.of(0, 1, 2, 3),
    read: async () => { throw wrong; },
  });
  const alone = (/** @type {() => any} */ work) => work();
  const fail = async (/** @type {unknown} */ error) => (failed.push(error), new Error("the device failed"));
  const session = new Session(steps, { context: 99, vocabulary: 4, chunk: 2, remedy: "", fail, draws: () => null,
    images: () => null, alone, after: alone }, 0);
  await session.feed([1, 2]);
  await assert.rejects(session.exportState(), { name: "RangeError", message: "gone" });
  assert.deepEqual(failed, []);
  wrong = new Error("mapAsync: the device is lost");
  await assert.rejects(session.exportState(), { message: "the device failed" });
  assert.deepEqual(failed, [wrong]);
  steps.run = async () => { throw new ImageIsGone("gone"); };
  await assert.rejects(session.feed([3]), { name: "RangeError", message: "gone" });
  assert.equal(failed.length, 1);
  assert.equal(session.position, 2);
});

test("top of a row in any order is what sorting gives", () => {
  const rows = {
    ascending: Float32Array.from({ length: 5000 }, (_, token) => token / 8),
    descending: Float32Array.from({ length: 5000 }, (_, token) => -token / 8),
    "zeros of both signs": Float32Array.from({ length: 5000 }, (_, token) => (token % 3 ? -0 : 0)),
    "mostly forbidden": makeRow("masked", 5000, 1).map((logit) => (logit > 1 ? logit : -Infinity)),
    extremes: Float32Array.of(-3.4e38, 1e-45, -1e-45, 3.4e38, 0, -Infinity),
  };
  for (const [name, values] of Object.entries(rows)) {
    // not by subtraction, which gives NaN for two infinite ones
    const order = [...values.keys()].sort((one, other) =>
      values[other] > values[one] ? 1 : values[other] < values[one] ? -1 : one - other,
    );
    for (const count of [1, 2, 64, 255, 4096, 9999]) {
      assert.deepEqual([...new ArrayLogits(values).top(count).tokens], order.slice(0, count), `${name}, ${count}`);
    }
  }
});

test("exponentials are Math.exp's to 1e-12", () => {
  for (let x = 0; x > NEGLIGIBLE; x -= 0.00137) {
    assert.ok(Math.abs(exponential(x) / Math.exp(x) - 1) < 1e-12, `exp(${x}) is ${exponential(x)}`);
  }
});

test("a row refuses what is no distribution", () => {
  const at = (/** @type {number} */ place, /** @type {number} */ value) =>
    makeRow("normal", 300, 1).fill(value, place, place + 1);
  for (const place of [0, 63, 64, 299]) {
    assert.throws(
      () => new ArrayLogits(at(place, NaN)).top(1),
      (error) => error instanceof DeviceError && error.message.includes(`token ${place} has NaN`),
    );
    assert.throws(
      () => new ArrayLogits(at(place, Infinity)).logsumexp(),
      (error) => error instanceof DeviceError && error.message.includes(`token ${place} has Infinity`),
    );
  }
  assert.throws(
    () => new ArrayLogits(new Float32Array(9).fill(-Infinity)).draw(1, 0.5),
    /RangeError: all logits are -Infinity/,
  );
  assert.throws(() => new ArrayLogits(new Float32Array(0)), RangeError);
  const row = new ArrayLogits(makeRow("normal", 300, 1));
  for (const wrong of [-1, 300, 1.5]) assert.throws(() => row.values([wrong]), RangeError);
  assert.throws(() => row.top(0), RangeError);
  assert.throws(() => row.logsumexp(0), RangeError);
});

test("penalties leave the row as it was", () => {
  const values = Float32Array.of(1.5, -2, 0, 0.1);
  const changed = new ArrayLogits(values).penalized({
    tokens: [0, 1, 3],
    biases: [0.5, 0, 0],
    divisors: [2, 2, 1],
    subtracted: [0.25, 0, 0.2],
  });
  assert.deepEqual(changed.values([0, 1, 2, 3]), [0.75, -4, 0, Math.fround(Math.fround(0.1) - Math.fround(0.2))]);
  assert.deepEqual([...values], [1.5, -2, 0, Math.fround(0.1)]);
});

test("options out of range are refused in Python's words", () => {
  for (const { options, error } of golden.refused) {
    assert.throws(() => new Sampling(options), { name: "RangeError", message: error.replace("-inf", "-Infinity") });
  }
  assert.throws(() => new Sampling({ temperature: NaN }), /temperature is NaN; expected 0 \(greedy\) to 100/);
  assert.throws(() => new Sampling({ seed: 1.5 }), /seed is 1.5/);
  assert.throws(() => new Sampling({ logit_bias: { 1.5: 2 } }), /expected token ids/);
  // @ts-expect-error the name in JavaScript's style, which is not ours
  assert.throws(() => new Sampling({ topK: 1 }), /sampling has no option 'topK'; expected temperature, top_k/);
});

test("options are frozen, and survive being posted", () => {
  const sampling = new Sampling({ logit_bias: { 7: 1, 3: -Infinity }, seed: 2n ** 60n, top_k: undefined });
  assert.deepEqual(sampling.logit_bias, [
    [3, -Infinity],
    [7, 1],
  ]);
  assert.throws(() => Object.assign(sampling, { top_k: 3 }), TypeError);
  assert.deepEqual(new Sampling(structuredClone(sampling)), sampling);
  assert.deepEqual(new Sampling({ logit_bias: new Map([[5, 1]]) }).logit_bias, [[5, 1]]);
});

for (const { options, shape, size, prompt, tokens, logprobs, kept } of golden.sampling) {
  test(`tokens are Python's: ${shape} ${size} ${JSON.stringify(options)}`, () => {
    /** @type {[number, number | null][]} */
    const pairs = options.logit_bias;
    const sampling = new Sampling({ ...options, logit_bias: pairs.map(([token, bias]) => [token, bias ?? -Infinity]) });
    const sampler = new Sampler(sampling, prompt);
    const rowAt = (/** @type {number} */ step) => new ArrayLogits(makeRow(shape, size, 1000 * options.seed + step));
    const picked = Array.from(tokens, (_, step) => {
      const pick = sampler.pick(rowAt(step));
      sampler.note(pick.token);
      return pick;
    });
    assert.deepEqual(
      picked.map(({ token }) => token),
      tokens,
    );
    picked.forEach(({ logprob }, step) => close(logprob, logprobs[step], `logprob of step ${step}`));
    const counts = [255, 4096].map((look) => {
      if (sampling.isGreedy || !sampling.truncates) return null;
      return truncated(rowAt(0), sampling, look)?.tokens.length ?? null;
    });
    assert.deepEqual(counts, kept);
  });
}

for (const { config, seed, size, prompt, tokens } of golden.bans) {
  test(`what a model bans does not come, as in Python: ${JSON.stringify(config)}`, async () => {
    const { sampling, bans } = await readDefaults(new Map([["generation_config.json", JSON.stringify(config)]]));
    const constraint = (bans ?? bansOf([]))(prompt, null, sampling.no_repeat_ngram);
    const sampler = new Sampler(new Sampling({ ...sampling, seed }), prompt, { constraint });
    assert.equal(sampler.draws, null); // no device can guess them
    const picked = Array.from(tokens, (_, step) => {
      const { token } = sampler.pick(new ArrayLogits(makeRow("normal", size, step % 3)));
      sampler.note(token);
      return token;
    });
    assert.deepEqual(picked, tokens);
    assert.equal(sampler.isDone, false);
  });
}

test("what a model bans is left out of what a format allows", async () => {
  const { bans } = await readDefaults(new Map([["generation_config.json", '{"bad_words_ids": [[2]]}']]));
  /** @type {number[]} */
  const noted = [];
  const inner = { isDone: true, isStopAllowed: false, mask: (/** @type {ArrayLogits} */ row) => row.masked(Int32Array.of(0b0110)),
    note: (/** @type {number} */ token) => void noted.push(token) };
  const sampler = new Sampler(new Sampling({ temperature: 0 }), [], { constraint: /** @type {any} */ (bans)([], inner, 0) });
  assert.equal(sampler.pick(new ArrayLogits(Float32Array.of(9, 1, 2, 3))).token, 1);
  sampler.note(1);
  assert.deepEqual([noted, sampler.isDone], [[1], true]);
});

test("a token outside the vocabulary is named", () => {
  const sampler = new Sampler(new Sampling({ logit_bias: { 300: 1 } }));
  assert.throws(() => sampler.pick(new ArrayLogits(makeRow("normal", 300, 1))), /token 300 is biased or was seen/);
});
