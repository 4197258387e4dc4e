// What Python in Pyodide adds to a step, beside the model: a formula's logits, made once, stand in for it.
//
//     python tools/make_web_wheel.py dist/web
//     node tests/benchmarks/bench_web_python.mjs dist/web/embedllm-0.1.0-py3-none-any.whl [--profile]
//
// Prints milliseconds a token of the processor's time, which a busy machine does not stretch: the median over replies of
// 200 tokens; with --profile where the time of one kind goes. "JavaScript" is the same rule in JavaScript over the same
// rows (bindings_web/src/sampling), awaited likewise.

import { readFile } from "node:fs/promises";
import { parseArgs } from "node:util";

import { Generation, run } from "../../bindings_web/src/sampling/generation.js";
import { Sampler } from "../../bindings_web/src/sampling/sampler.js";
import { Sampling } from "../../bindings_web/src/sampling/options.js";
import { StopStrings, TextStream } from "../../bindings_web/src/sampling/text_stream.js";
import { ByteCodec, FormulaEngine, logitsAfter } from "../web/support/formula.js";
import { formulaBridge, startPyodide } from "../web/node/pyodide.mjs";

const TOKENS = 200;
const REPLIES = 7;
const SAMPLINGS = {
  greedy: { temperature: 0 },
  "top-p": { temperature: 0.8, top_p: 0.95, seed: 1 },
  "top-k and penalties": { temperature: 0.8, top_k: 40, repetition_penalty: 1.1, seed: 1 },
};

const { values, positionals } = parseArgs({ allowPositionals: true, options: { profile: { type: "boolean" } } });
const manifest = JSON.parse(await readFile(new URL("../../embedllm/demo/embedllm.json", import.meta.url), "utf-8"));

for (const vocabulary of [257, 16_384, 152_000]) {
  manifest.architecture.embedding.rows = vocabulary;
  const texts = { "embedllm.json": JSON.stringify(manifest) };
  const bridge = formulaBridge({ vocabulary, context: manifest.context, texts });
  const python = await startPyodide({ archives: positionals }, bridge);
  await python.runPythonAsync(`
import embedllm
llm = await embedllm.aload("bench")
async def reply(options):
    await llm.agenerate([104, 105], embedllm.Sampling(**options), max_tokens=${TOKENS}, stop_tokens=[])
`);
  const [engine] = bridge.engines;
  const row = logitsAfter(vocabulary, [5]).map((logit, token) => (token < 257 ? 2 * logit : 1.5 * logit));
  engine.fixed = row;
  for (const [name, options] of Object.entries(SAMPLINGS)) {
    python.globals.set("options", python.toPy(options));
    const found = await measured(() => python.runPythonAsync("await reply(options)"));
    const bare = await measured(() => inJavaScript(vocabulary, row, options));
    console.log(`V ${vocabulary}, ${name}: Python ${found.toFixed(3)} ms a token, JavaScript ${bare.toFixed(3)}`);
  }
  if (values.profile && vocabulary === 16_384) {
    python.globals.set("options", python.toPy(SAMPLINGS["top-p"]));
    await python.runPythonAsync(`
import cProfile, pstats
profile = cProfile.Profile()
profile.enable()
for _ in range(5):
    await reply(options)
profile.disable()
pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(28)
`);
  }
}

/** Milliseconds of the processor's time a token. @param {() => Promise<unknown>} reply */
async function measured(reply) {
  const times = [];
  for (let place = 0; place <= REPLIES; place++) {
    const before = process.cpuUsage();
    await reply();
    const { user, system } = process.cpuUsage(before);
    if (place > 0) times.push((user + system) / 1e3 / TOKENS);
  }
  return times.sort((a, b) => a - b)[REPLIES >> 1];
}

/**
 * One reply of the rule in JavaScript.
 *
 * @param {number} vocabulary @param {Float32Array} row @param {object} options
 */
async function inJavaScript(vocabulary, row, options) {
  const engine = new FormulaEngine(vocabulary, manifest.context);
  engine.fixed = row;
  const session = engine.open();
  const generation = new Generation({
    sampler: new Sampler(new Sampling(options), [104, 105]),
    text: new TextStream(new ByteCodec(), { special: false }),
    stops: new StopStrings([]),
    stopTokens: new Set(),
    limit: TOKENS,
    limitReason: "length",
    statistics: { prompt_tokens: 2, cached_tokens: 0 },
  });
  for await (const _ of run(generation, (tokens) => session.feed(Int32Array.from(tokens)), [[104, 105]], null));
}
