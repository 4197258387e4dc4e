// Milliseconds that one token costs the rule in JavaScript (median and 90th percentile), by options and shape of logits.
//
//     node tests/benchmarks/bench_web_rule.mjs [VOCABULARY] [STEPS]
//
// Run on an idle machine. Every step sees a row that no question was asked of before, as after a step of a model; making
// it is not counted. `peaked` has most of the probability in some 30 tokens; `flat` is a normal distribution of logits,
// whose nucleus of 0.9 is 60 % of the vocabulary: worse than any trained model at a usual temperature.

import { ArrayLogits } from "../../bindings_web/src/sampling/array_logits.js";
import { Sampler, topLogprobs } from "../../bindings_web/src/sampling/sampler.js";
import { Sampling } from "../../bindings_web/src/sampling/options.js";

const size = Number(process.argv[2] ?? 152000);
const steps = Number(process.argv[3] ?? 200);
const SEEN = Array.from({ length: 1000 }, (_, place) => 7 * place);
const PENALTIES = { repetition_penalty: 1.1, presence_penalty: 0.2, frequency_penalty: 0.1 };

/** @type {Record<string, (row: ArrayLogits) => unknown>} */
const QUESTIONS = {
  "top(1), logsumexp": (row) => [row.top(1), row.logsumexp()],
  "top(255), logsumexp": (row) => [row.top(255), row.logsumexp()],
  "top(4096)": (row) => row.top(4096),
  "20 top_logprobs": (row) => topLogprobs(row, 20),
};
const OPTIONS = {
  greedy: { temperature: 0 },
  "temperature 0.8": { temperature: 0.8 },
  "top_k 40": { top_k: 40 },
  "top_p 0.9": { top_p: 0.9 },
  "top_p 0.9, temperature 0.8": { top_p: 0.9, temperature: 0.8 },
  "min_p 0.05": { min_p: 0.05 },
  "typical_p 0.9": { typical_p: 0.9 },
  "penalties, 1000 seen": PENALTIES,
  "top_k, top_p, min_p, temperature": { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 },
  "everything, 1000 seen": { temperature: 0.8, top_k: 100, typical_p: 0.95, top_p: 0.9, min_p: 0.02, ...PENALTIES },
};

/** @param {boolean} isPeaked */
function logitsOf(isPeaked) {
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  return Float32Array.from({ length: size }, (_, token) => (isPeaked && token % 5000 === 0 ? 14 : 0) + normal());
}

/** @param {Float32Array} logits @param {(row: ArrayLogits) => unknown} asked */
function timed(logits, asked) {
  const spent = [];
  for (let step = 0; step < steps; step++) {
    const row = new ArrayLogits(logits);
    const started = performance.now();
    asked(row);
    spent.push(performance.now() - started);
  }
  spent.sort((one, other) => one - other);
  return [0.5, 0.9].map((part) => spent[Math.floor(part * steps)].toFixed(3)).join(" / ");
}

const rows = [logitsOf(true), logitsOf(false)];
/** @type {Record<string, {peaked: string, flat: string}>} */
const table = {};
for (const [name, asked] of Object.entries(QUESTIONS)) {
  const [peaked, flat] = rows.map((logits) => timed(logits, asked));
  table[name] = { peaked, flat };
}
for (const [name, options] of Object.entries(OPTIONS)) {
  const [peaked, flat] = rows.map((logits) => {
    const sampler = new Sampler(new Sampling({ ...options, seed: 1 }), SEEN);
    return timed(logits, (row) => sampler.note(sampler.pick(row).token));
  });
  table[name] = { peaked, flat };
}
console.log(`Node ${process.version}, vocabulary ${size}, ${steps} steps; ms, median / 90th percentile`);
console.table(table);
