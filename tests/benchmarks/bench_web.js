// The engines of bench_web.py, each in a worker of its own: embedllm-web, and transformers.js as its users have it.

/**
 * @typedef {{ids: number[], times: number[]}} Reply times: of each token, in ms, the first as the start is 0
 * @typedef {{prefill: (tokens: number[]) => Promise<number>, keep: (name: string, tokens: number[]) => Promise<void>,
 *   decode: (name: string, count: number) => Promise<Reply>}} Engine prefill: ms to the first token; keep: holds a
 *   prompt but for its last token, so that decode() goes on from there, again and again
 */

/** Every memory of WebAssembly that this worker makes. @type {WebAssembly.Memory[]} */
const memories = [];
WebAssembly.Memory = new Proxy(WebAssembly.Memory, {
  construct(target, given) {
    const memory = Reflect.construct(target, given);
    memories.push(memory);
    return memory;
  },
});

/** Most bytes that WebAssembly has taken: it gives none back. */
export const wasmBytes = () => memories.reduce((sum, { buffer }) => sum + buffer.byteLength, 0);

/**
 * Sessions of embedllm-web, without its API.
 *
 * @param {{url: string, threads: number, urls: object, device: string, ahead?: boolean}} options ahead: false: steps are
 *   asked for singly, as sampling does
 */
export async function openOurs({ url, threads, urls, device, ahead = true }) {
  const { load } = await import("/src/worker/load_model.js");
  const loaded = await load(url, { device, threads, urls });
  const runtime = await import("/src/engine/ort_runtime.js");
  const isCpu = device === "wasm";
  const base = urls.onnxruntime;
  const started = isCpu ? runtime.loadCpuRuntime(base, threads) : runtime.loadGpuRuntime(base);
  const inner = (await started).module(); // the one that load() started
  const name = isCpu ? "_OrtRun" : "_OrtRunWithBinding";
  const run = inner[name];
  const spent = { runs: 0, ms: 0 }; // in ONNX Runtime
  inner[name] = async (...given) => {
    const start = performance.now();
    const code = await run(...given);
    spent.ms += performance.now() - start;
    spent.runs++;
    return code;
  };
  const held = new Map(); // name -> {session, last, position}
  return {
    spent,
    versions: { device: loaded.device.description, type: loaded.kind.type, captures: loaded.engine.captures },
    async prefill(tokens) {
      const session = loaded.engine.open();
      const start = performance.now();
      (await session.feed(tokens)).top(1);
      const time = performance.now() - start;
      session.close();
      return time;
    },
    async keep(name, tokens) {
      const session = loaded.engine.open();
      await session.feed(tokens.slice(0, -1));
      held.set(name, { session, last: tokens.at(-1), position: session.position });
    },
    async decode(name, count) {
      const { session, last, position } = held.get(name);
      session.rewind(position);
      const [ids, times] = [[], []];
      for (let token = last, step = 0; step < count; step++) {
        const row = await session.feed([token]);
        token = row.top(ahead ? 1 : 2).tokens[0];
        row.logsumexp();
        ids.push(token);
        times.push(performance.now());
      }
      return { ids, times };
    },
  };
}

/**
 * Its API, as a page has it: a worker of its own.
 *
 * @param {{url: string, threads: number, urls: object, device: string, engine: string, sampling: object}} options
 */
export async function openApi({ url, threads, urls, device, engine, sampling }) {
  const { EmbedLLM } = await import("/src/index.js");
  const llm = await EmbedLLM.load(url, { device, threads, engine, urls });
  const held = new Map();
  const reply = async (tokens, count) => {
    const options = { ...sampling, max_tokens: count, stop_tokens: [] };
    const ids = [];
    let last = null;
    for await (const chunk of llm.stream(tokens, options)) {
      ids.push(chunk.token);
      last = chunk;
    }
    return { ids, statistics: last.statistics };
  };
  return {
    versions: { device: llm.device.description, engine },
    async prefill(tokens) {
      return 1000 * (await reply(tokens, 1)).statistics.prefill_s;
    },
    async keep(name, tokens) {
      held.set(name, tokens);
    },
    async decode(name, count) {
      const { ids, statistics } = await reply(held.get(name), count + 1);
      const each = (1000 * statistics.decode_s) / count;
      return { ids: ids.slice(0, count), times: Array.from({ length: count }, (_, place) => place * each) };
    },
  };
}

/**
 * @param {{library: string, wasm: {mjs: string, wasm: string}, models: string, dtype: string, threads: number,
 *   device: string}} options
 */
export async function openTheirs({ library, wasm, models, dtype, threads, device }) {
  const { AutoModelForCausalLM, AutoTokenizer, BaseStreamer, DynamicCache, Tensor, env } = await import(library);
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = models;
  env.backends.onnx.wasm.wasmPaths = wasm;
  env.backends.onnx.wasm.numThreads = threads;
  const options = { dtype, device };
  const [model] = await Promise.all([
    AutoModelForCausalLM.from_pretrained("demo", options), AutoTokenizer.from_pretrained("demo"),
  ]);
  class Clock extends BaseStreamer {
    times = []; // the first: the prompt is told before anything is computed
    put() {
      this.times.push(performance.now());
    }
    end() {}
  }
  const inputs = (tokens) => ({
    input_ids: new Tensor("int64", BigInt64Array.from(tokens, BigInt), [1, tokens.length]),
    attention_mask: new Tensor("int64", new BigInt64Array(tokens.length).fill(1n), [1, tokens.length]),
    do_sample: false,
  });
  const held = new Map(); // name -> {tokens, what gives generate() their cache}
  return {
    versions: { transformers: env.version, onnxruntime: env.backends.onnx.versions?.web },
    async prefill(tokens) {
      const start = performance.now();
      await model.generate({ ...inputs(tokens), max_new_tokens: 1 });
      return performance.now() - start;
    },
    async keep(name, tokens) {
      if (device !== "wasm") return void held.set(name, { tokens, past: () => ({}) }); // tensors on a GPU are its own to free
      const given = { ...inputs(tokens.slice(0, -1)), max_new_tokens: 1, return_dict_in_generate: true };
      const { past_key_values } = await model.generate(given);
      const entries = { ...past_key_values };
      held.set(name, { tokens, past: () => ({ past_key_values: new DynamicCache(entries) }) });
    },
    async decode(name, count) {
      const { tokens, past } = held.get(name);
      const streamer = new Clock();
      const given = { ...inputs(tokens), ...past(), max_new_tokens: count, streamer };
      const output = await model.generate(given);
      return { ids: output.tolist()[0].slice(tokens.length).map(Number), times: streamer.times.slice(1) };
    },
  };
}
