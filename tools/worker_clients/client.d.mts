// The types of embedllm_worker.mjs; docs/worker.md.

/** The worker answered with an error, or is gone: then `code` is 0. */
export declare class WorkerError extends Error {
  readonly code: number;
  readonly data: { kind?: string; param?: string; [name: string]: unknown };
}

export interface ClientOptions {
  /** What these throw, or reject with, fails the request that runs. */
  onProgress?: (progress: Progress) => void | Promise<void>;
  onLog?: (log: Log) => void | Promise<void>;
  /** Of the worker's process; default: this one's. */
  env?: { [name: string]: string | undefined };
}

export interface RequestOptions {
  /** Cancels the request; a reply then ends with the text so far. */
  signal?: AbortSignal;
}

export interface ReplyOptions extends RequestOptions {
  /** Told of each piece of the reply. What it throws, or rejects with, fails the request. */
  onChunk?: (chunk: Chunk) => void | Promise<void>;
}

/** A worker process and the requests that it has. */
export declare class WorkerClient {
  /** command: the program and its arguments; default: ["embedllm", "worker"]. */
  constructor(command?: string[], options?: ClientOptions);
  /** A request by its wire names. */
  request(method: string, params?: object, options?: ReplyOptions): Promise<unknown>;
  // <methods>
  /** Ends the worker, after the timeout (5000 ms) by force; requests that are not answered are cancelled. */
  close(timeoutMs?: number): Promise<void>;
}

// <types>
