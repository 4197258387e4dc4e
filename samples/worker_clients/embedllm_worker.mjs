// Made by `python -m tools.make_worker_clients --write`; change what that reads, not this file.
// A client of `embedllm worker` for Node.js: this file, no packages. Types: embedllm_worker.d.mts; docs/worker.md.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const KEPT_LINES = 20; // of the worker's stderr, to tell why it ended

/** The worker answered with an error, or is gone: then `code` is 0. */
export class WorkerError extends Error {
  constructor(message, code = 0, data = {}) {
    super(message);
    this.name = "WorkerError";
    this.code = code;
    this.data = data;
  }
}

/** A worker process and the requests that it has. */
export class WorkerClient {
  #process;
  #waiting = new Map(); // by id
  #lastId = 0;
  #gone; // why, once it is
  #errors = [];
  #closed;

  /** command: the program and its arguments. */
  constructor(command = ["embedllm", "worker"], { onProgress = () => {}, onLog = () => {}, env = process.env } = {}) {
    const [program, ...rest] = command;
    this.#process = spawn(program, rest, { stdio: ["pipe", "pipe", "pipe"], windowsHide: true, env });
    this.#closed = new Promise((resolve) => {
      const end = (why) => {
        this.#end(why);
        resolve();
      };
      this.#process.on("error", (error) => end(error.message)); // there is no such program
      this.#process.on("close", (code) => end(`exit code ${code}`)); // after its last line was read
    });
    this.#process.stdin.on("error", () => {}); // "close" tells of its end
    createInterface({ input: this.#process.stderr }).on("line", (line) => {
      this.#errors.push(line);
      if (this.#errors.length > KEPT_LINES) this.#errors.shift();
    });
    createInterface({ input: this.#process.stdout }).on("line", (line) => this.#take(line, { onProgress, onLog }));
  }

  /** A request by its wire names. signal: cancels it; a reply then ends with the text so far. */
  request(method, params = {}, { onChunk = () => {}, signal } = {}) {
    if (this.#gone !== undefined) return Promise.reject(new WorkerError(this.#gone));
    const id = ++this.#lastId;
    const cancel = () => this.#write({ method: "cancel", params: { id } });
    const done = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject, onChunk, cancel }));
    this.#write({ id, method, params });
    if (signal?.aborted) cancel();
    signal?.addEventListener("abort", cancel);
    return done.finally(() => signal?.removeEventListener("abort", cancel));
  }

  /** The version of the protocol, the methods and the limits. */
  initialize(params = {}, options) {
    return this.request("initialize", params, options);
  }

  /** The devices of this machine. */
  devices(options) {
    return this.request("devices", {}, options);
  }

  /** Loads a model in place of the one before. */
  load(params = {}, options) {
    return this.request("load", params, options);
  }

  /** Continues a text as it stands. */
  generate(params, options) {
    return this.request("generate", params, options);
  }

  /** Replies to a conversation. */
  chat(params, options) {
    return this.request("chat", params, options);
  }

  /** Frees the model. */
  unload(options) {
    return this.request("unload", {}, options);
  }

  /** Ends the worker. */
  shutdown(options) {
    return this.request("shutdown", {}, options);
  }

  /** Ends the worker; requests that are not answered are cancelled. */
  async close() {
    this.#process.stdin.end();
    await this.#closed;
  }

  #write(message) {
    if (this.#gone === undefined) this.#process.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
  }

  #take(line, { onProgress, onLog }) {
    let message;
    try {
      message = JSON.parse(line);
    } catch {
      this.#end(`it wrote '${line.slice(0, 200)}', which is no message`);
      this.#process.kill();
      return;
    }
    const { id, method, params, result, error } = message;
    if (method === "progress") onProgress(params);
    else if (method === "log") onLog(params);
    else if (method === "chunk") this.#tell(this.#waiting.get(params.id), params);
    else if (this.#waiting.has(id)) {
      const asked = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error) asked.reject(new WorkerError(error.message, error.code, error.data));
      else asked.resolve(result);
    }
  }

  /** What onChunk throws fails its request, and no other. */
  #tell(asked, chunk) {
    try {
      asked?.onChunk(chunk);
    } catch (error) {
      this.#waiting.delete(chunk.id);
      asked.cancel();
      asked.reject(error);
    }
  }

  #end(why) {
    if (this.#gone !== undefined) return;
    this.#gone = ["the worker ended:", why, ...this.#errors].join(" ");
    for (const { reject } of this.#waiting.values()) reject(new WorkerError(this.#gone));
    this.#waiting.clear();
  }
}
