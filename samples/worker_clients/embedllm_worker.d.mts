// Made by `python -m tools.make_worker_clients --write`; change what that reads, not this file.
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
  /** The version of the protocol, the methods and the limits. */
  initialize(params?: InitializeParams, options?: RequestOptions): Promise<Initialized>;
  /** The devices of this machine. */
  devices(options?: RequestOptions): Promise<Devices>;
  /** Loads a model in place of the one before. */
  load(params?: LoadParams, options?: RequestOptions): Promise<Loaded>;
  /** Continues a text as it stands. */
  generate(params: GenerateParams, options?: ReplyOptions): Promise<Reply>;
  /** Replies to a conversation. */
  chat(params: ChatParams, options?: ReplyOptions): Promise<Reply>;
  /** Frees the model. */
  unload(options?: RequestOptions): Promise<object>;
  /** Ends the worker. */
  shutdown(options?: RequestOptions): Promise<object>;
  /** Ends the worker, after the timeout (5000 ms) by force; requests that are not answered are cancelled. */
  close(timeoutMs?: number): Promise<void>;
}

export interface InitializeParams {
  protocol?: number;
}

export interface LoadParams {
  model?: string;
  device?: string | string[];
  threads?: number;
  exact?: boolean;
  parse_special?: boolean;
  kv?: "int8" | "int4";
  context?: number;
  draft?: string;
  adapters?: { [name: string]: string };
  cache_dir?: string;
}

export interface GenerateParams {
  prompt: string;
  adapter?: string;
  max_tokens?: number;
  min_tokens?: number;
  stop?: string | string[];
  stop_tokens?: number[];
  timeout?: number;
  speculate?: "auto" | "lookup" | "draft" | "off";
  response_format?: { [name: string]: unknown } | string[];
  /** Sampling temperature; 0 = greedy. */
  temperature?: number;
  /** Dynamic temperature range (dynatemp); 0 = off. */
  dynamic_temperature?: number;
  /** Dynamic temperature exponent (dynatemp). */
  dynamic_exponent?: number;
  /** Top-k sampling: keep the K most probable tokens; 0 = off. */
  top_k?: number;
  /** Top-p (nucleus) sampling: keep the fewest tokens with this probability mass; 1 = off. */
  top_p?: number;
  /** Min-p sampling: minimum probability relative to the best token; 0 = off. */
  min_p?: number;
  /** Locally typical sampling: probability mass; 1 = off. */
  typical_p?: number;
  /** Top-n-sigma sampling: keep logits within N standard deviations of the best; 0 = off. */
  top_n_sigma?: number;
  /** XTC sampling: probability of removing the top choices; 0 = off. */
  xtc_probability?: number;
  /** XTC sampling: minimum probability of a top choice. */
  xtc_threshold?: number;
  /** Mirostat 1/2: target perplexity control, in place of the truncations above; 0 = off. */
  mirostat?: number;
  /** Mirostat target surprise tau (bits). */
  mirostat_tau?: number;
  /** Mirostat learning rate eta. */
  mirostat_eta?: number;
  /** Repetition penalty on tokens of prompt and reply; 1 = off. */
  repetition_penalty?: number;
  /** Presence penalty on tokens of the reply; 0 = off. */
  presence_penalty?: number;
  /** Frequency penalty on tokens of the reply, per occurrence; 0 = off. */
  frequency_penalty?: number;
  /** DRY penalty on repeated sequences: multiplier; 0 = off. */
  dry_multiplier?: number;
  /** DRY penalty: base of the exponential growth. */
  dry_base?: number;
  /** DRY penalty: longest sequence that may repeat without a penalty. */
  dry_allowed_length?: number;
  /** DRY penalty: number of last tokens to search; 0 = all. */
  dry_range?: number;
  /** DRY sequence breakers. */
  dry_breakers?: string[];
  /** No n-gram of N tokens occurs twice; 0 = off. */
  no_repeat_ngram?: number;
  /** Banned strings (bad_words). */
  bad_words?: string[];
  /** Random seed, for reproducible replies on the same device. */
  seed?: number;
  logit_bias?: { [name: string]: number };
  special?: boolean;
}

export interface ChatParams {
  messages: Message[];
  system?: string;
  variables?: { [name: string]: unknown };
  adapter?: string;
  /** Sampling temperature; 0 = greedy. */
  temperature?: number;
  /** Dynamic temperature range (dynatemp); 0 = off. */
  dynamic_temperature?: number;
  /** Dynamic temperature exponent (dynatemp). */
  dynamic_exponent?: number;
  /** Top-k sampling: keep the K most probable tokens; 0 = off. */
  top_k?: number;
  /** Top-p (nucleus) sampling: keep the fewest tokens with this probability mass; 1 = off. */
  top_p?: number;
  /** Min-p sampling: minimum probability relative to the best token; 0 = off. */
  min_p?: number;
  /** Locally typical sampling: probability mass; 1 = off. */
  typical_p?: number;
  /** Top-n-sigma sampling: keep logits within N standard deviations of the best; 0 = off. */
  top_n_sigma?: number;
  /** XTC sampling: probability of removing the top choices; 0 = off. */
  xtc_probability?: number;
  /** XTC sampling: minimum probability of a top choice. */
  xtc_threshold?: number;
  /** Mirostat 1/2: target perplexity control, in place of the truncations above; 0 = off. */
  mirostat?: number;
  /** Mirostat target surprise tau (bits). */
  mirostat_tau?: number;
  /** Mirostat learning rate eta. */
  mirostat_eta?: number;
  /** Repetition penalty on tokens of prompt and reply; 1 = off. */
  repetition_penalty?: number;
  /** Presence penalty on tokens of the reply; 0 = off. */
  presence_penalty?: number;
  /** Frequency penalty on tokens of the reply, per occurrence; 0 = off. */
  frequency_penalty?: number;
  /** DRY penalty on repeated sequences: multiplier; 0 = off. */
  dry_multiplier?: number;
  /** DRY penalty: base of the exponential growth. */
  dry_base?: number;
  /** DRY penalty: longest sequence that may repeat without a penalty. */
  dry_allowed_length?: number;
  /** DRY penalty: number of last tokens to search; 0 = all. */
  dry_range?: number;
  /** DRY sequence breakers. */
  dry_breakers?: string[];
  /** No n-gram of N tokens occurs twice; 0 = off. */
  no_repeat_ngram?: number;
  /** Banned strings (bad_words). */
  bad_words?: string[];
  /** Random seed, for reproducible replies on the same device. */
  seed?: number;
  logit_bias?: { [name: string]: number };
  max_tokens?: number;
  min_tokens?: number;
  stop?: string | string[];
  stop_tokens?: number[];
  timeout?: number;
  speculate?: "auto" | "lookup" | "draft" | "off";
  response_format?: { [name: string]: unknown } | string[];
  tools?: Tool[];
  tool_choice?: string | { [name: string]: unknown };
  reasoning_effort?: string;
  documents?: { [name: string]: unknown }[];
  special?: boolean;
}

export interface Limits {
  message_bytes: number;
  queued_requests: number;
}

export interface Initialized {
  protocol: number;
  methods: string[];
  limits: Limits;
  versions: { [name: string]: string };
}

export interface Device {
  name: string;
  backend: string;
  description: string;
  available: boolean;
  reason: string;
  remedy: string;
  memory: number;
}

export interface Devices {
  devices: Device[];
}

export interface Loaded {
  model: string;
  device: Device;
  context: number;
  can_chat: boolean;
}

export interface ToolCall {
  id: string;
  name: string;
  arguments: { [name: string]: unknown };
  problem: string;
  text: string;
}

export interface CallDelta {
  index: number;
  id: string;
  name: string;
  arguments: string;
  problem: string;
}

export interface Reply {
  text: string;
  reasoning: string;
  tool_calls: ToolCall[];
  message: Message | null;
  finish_reason: "stop" | "length" | "context" | "cancelled" | "timeout";
  stopped_by: string | number | null;
  prompt_tokens: number;
  cached_tokens: number;
  tokens: number;
  drafted_tokens: number;
  accepted_tokens: number;
  prefill_s: number;
  decode_s: number;
  device: string | null;
}

export interface Message {
  role: string;
  content?: string | { [name: string]: unknown }[] | null;
  reasoning_content?: string | null;
  tool_calls?: MessageToolCall[] | null;
  tool_call_id?: string | null;
  name?: string | null;
  [name: string]: unknown;
}

export interface Tool {
  type?: string;
  function: ToolFunction;
  [name: string]: unknown;
}

export interface Chunk {
  id: string | number;
  text: string;
  reasoning?: string;
  tool_calls?: ToolCall[];
  call_deltas?: CallDelta[];
}

export interface Progress {
  id: string | number;
  text: string;
  elapsed_s: number;
}

export interface Log {
  level: string;
  text: string;
}

export interface MessageToolCall {
  id?: string | null;
  type?: string;
  function: MessageToolCallFunction;
  [name: string]: unknown;
}

export interface MessageToolCallFunction {
  name: string;
  arguments?: string | { [name: string]: unknown };
}

export interface ToolFunction {
  name: string;
  description?: string | null;
  parameters?: { [name: string]: unknown } | null;
  [name: string]: unknown;
}
