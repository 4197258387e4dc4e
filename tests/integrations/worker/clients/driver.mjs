// Sends the cases of a file through the JavaScript client, and prints what came of each as a line of JSON.
// node driver.mjs CLIENT CASES PROGRAM [ARGUMENT...]
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [client, cases, ...command] = process.argv.slice(2);
const { WorkerClient, WorkerError } = await import(pathToFileURL(client));
const worker = new WorkerClient(command);

async function run({ method, params, cancel_after: most, is_raw: isRaw }) {
  const chunks = [];
  const stop = new AbortController();
  const onChunk = ({ id, ...chunk }) => {
    chunks.push(chunk);
    if (chunks.length === most) stop.abort();
  };
  const options = { onChunk, signal: stop.signal };
  if (most === 0) stop.abort();
  try {
    const typed = params === undefined ? [options] : [params, options];
    const result = await (isRaw ? worker.request(method, params, options) : worker[method](...typed));
    return { result, chunks };
  } catch (error) {
    if (!(error instanceof WorkerError)) throw error;
    return { error: { code: error.code, message: error.message, data: error.data }, chunks };
  }
}

for (const one of JSON.parse(readFileSync(cases, "utf-8"))) console.log(JSON.stringify(await run(one)));
await worker.close();
