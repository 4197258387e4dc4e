// What becomes of requests when something fails, as a line of JSON: texts of replies, or of errors.
// node faults.mjs CLIENT CASE PROGRAM [ARGUMENT...]
import { pathToFileURL } from "node:url";

const [client, name, ...command] = process.argv.slice(2);
const { WorkerClient } = await import(pathToFileURL(client));

const fail = () => {
  throw new Error("mine");
};
const reject = async () => fail();
const CASES = {
  plain: { first: (worker) => worker.generate({ prompt: "x" }) },
  onProgress: { options: { onProgress: fail }, first: (worker) => worker.load({}) },
  onProgress_async: { options: { onProgress: reject }, first: (worker) => worker.load({}) },
  onLog: { options: { onLog: fail }, first: (worker) => worker.load({}) },
  onLog_async: { options: { onLog: reject }, first: (worker) => worker.load({}) },
  onChunk: { first: (worker) => worker.generate({ prompt: "x" }, { onChunk: fail }) },
  onChunk_async: { first: (worker) => worker.generate({ prompt: "x" }, { onChunk: reject }) },
  no_json: { first: (worker) => worker.generate({ prompt: "x", seed: 5n }) },
  close_in_onChunk: { first: (worker) => worker.generate({ prompt: "x" }, { onChunk: () => worker.close() }) },
  hang: { first: (worker) => (setTimeout(() => worker.close(200), 50), worker.generate({ prompt: "x" })) },
};
const { options, first } = CASES[name];
const worker = new WorkerClient(command, options);
const outcome = (promise) => promise.then((reply) => reply.text, (error) => error.message);
const outcomes = [await outcome(first(worker)), await outcome(worker.generate({ prompt: "x" }))];
await worker.close();
await worker.close(); // twice is fine
console.log(JSON.stringify(outcomes));
