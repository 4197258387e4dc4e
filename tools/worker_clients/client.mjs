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
      // after its last line was read
      this.#process.on("close", (code, signal) => end(signal ? `signal ${signal}` : `exit code ${code}`));
    });
    this.#process.stdin.on("error", () => {}); // "close" tells of its end
    createInterface({ input: this.#process.stderr }).on("line", (line) => {
      this.#errors.push(line);
      if (this.#errors.length > KEPT_LINES) this.#errors.shift();
    });
    createInterface({ input: this.#process.stdout }).on("line", (line) => this.#take(line, { onProgress, onLog }));
  }

  /**
   * A request by its wire names. signal: cancels it; a reply then ends with the text so far. Rejects with TypeError for
   * what JSON cannot hold.
   */
  async request(method, params = {}, { onChunk = () => {}, signal } = {}) {
    if (this.#gone !== undefined) throw new WorkerError(this.#gone);
    const id = ++this.#lastId;
    const line = lineOf({ id, method, params }); // may throw, and nobody waits then
    const cancel = () => this.#write(lineOf({ method: "cancel", params: { id } }));
    const done = new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, onChunk, cancel, callbacks: [], hasFailed: false });
    });
    this.#write(line);
    if (signal?.aborted) cancel();
    signal?.addEventListener("abort", cancel);
    return done.finally(() => signal?.removeEventListener("abort", cancel));
  }

  // <methods>

  /** Ends the worker, after the timeout by force; requests that are not answered are cancelled. */
  async close(timeoutMs = 5000) {
    this.#process.stdin.end();
    const timer = setTimeout(() => this.#kill(`it did not end within ${timeoutMs / 1000} s, and was killed`), timeoutMs);
    await this.#closed;
    clearTimeout(timer);
  }

  #kill(why) {
    this.#end(why);
    this.#process.kill("SIGKILL");
    this.#process.stdout.destroy(); // a child of its may hold the other end
    this.#process.stderr.destroy();
  }

  #write(line) {
    if (this.#gone === undefined) this.#process.stdin.write(line);
  }

  #take(line, { onProgress, onLog }) {
    try {
      const { id, method, params, result, error } = JSON.parse(line);
      if (method === "progress") this.#callBack(params.id, onProgress, params);
      else if (method === "chunk") this.#callBack(params.id, this.#waiting.get(params.id)?.onChunk, params);
      else if (method === "log") this.#callBack(undefined, onLog, params);
      else if (this.#waiting.has(id)) {
        const { resolve, reject, callbacks } = this.#waiting.get(id);
        if (error) reject(new WorkerError(error.message, error.code, error.data));
        else Promise.allSettled(callbacks).then(() => resolve(result)); // one that failed has rejected the request
        this.#waiting.delete(id);
      } else if (method === undefined && id === undefined) throw new TypeError("no answer and no notification");
    } catch {
      this.#kill(`it wrote '${line.slice(0, 200)}', which is no message`);
    }
  }

  /**
   * Calls back the host. What that throws, or rejects with, fails the request, and no other; it keeps its place until the
   * worker has answered. id: undefined of a log, which is of the oldest request.
   */
  #callBack(id = this.#waiting.keys().next().value, callback, params) {
    const request = this.#waiting.get(id);
    if (request === undefined ? id !== undefined : request.hasFailed) return;
    const fail = (error) => {
      if (request === undefined) return console.error(error); // nobody waits
      if (this.#waiting.has(id)) request.cancel();
      request.hasFailed = true;
      request.reject(error);
    };
    try {
      const returned = callback(params);
      if (typeof returned?.then !== "function") return;
      const settled = Promise.resolve(returned).catch(fail);
      request?.callbacks.push(settled);
    } catch (error) {
      fail(error);
    }
  }

  #end(why) {
    if (this.#gone !== undefined) return;
    this.#gone = ["the worker ended:", why, ...this.#errors].join(" ");
    for (const { reject } of this.#waiting.values()) reject(new WorkerError(this.#gone));
    this.#waiting.clear();
  }
}

/** A message as it is sent. */
const lineOf = (message) => JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n";
