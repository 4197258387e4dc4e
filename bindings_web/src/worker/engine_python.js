// The engine "python": Pyodide in this worker, with embedllm's own rule, template and conversation in it.

import { EmbedError } from "../errors.js";
import { Grammars } from "../grammar/cache.js";
import { hasImages, takesImages } from "../images/parts.js";
import { remade } from "./protocol.js";
import { startPython } from "./python_start.js";

/**
 * @import { Loaded, Options } from "./load_model.js"
 * @import { Urls } from "../libraries.js"
 * @import { MakeMatcher } from "../grammar/cache.js"
 * @import { Chunk, Load, Reply } from "./protocol.js"
 * @import { Opened, Opening, Replying } from "./request_server.js"
 * @import { ModelImages, Source } from "../images/prompt.js"
 * @import { Session } from "../engine/session.js"
 * @typedef {{load: (url: string, options?: Options) => Promise<Loaded>}} Bridge
 */

/**
 * The Python object that answers: bindings_web/serve.py.
 *
 * @typedef {{context: number, name: string, can_chat: boolean, cancel: () => void,
 *   reply: (reply: string, tell: (...values: any[]) => void, make?: MakeMatcher) => any,
 *   session: (conversation: number) => Session | undefined, tokens: (conversation: number) => string,
 *   hold: (conversation: number, tokens: string) => Session,
 *   forget: (conversation: number) => void, close: () => void, destroy: () => void}} Server
 */

const BRIDGE = "embedllm_bridge"; // as bindings_web/bridge.py looks for it
const STARTED = { file: "python", phase: /** @type {const} */ ("compile"), total: 1 };

/** @type {Promise<any> | null} */
let starting = null; // Python's module serve.py; one Pyodide for all models of a worker
/** What Python's call of the bridge gets. @type {Promise<Loaded> | null} */
let current = null;

/**
 * Loads a model and its Python.
 *
 * @param {Bridge} bridge
 * @param {Load} load
 * @param {Opening} opening
 * @returns {Promise<Opened>}
 */
export async function openPython(bridge, { url, device, threads, context, urls, parse_special }, opening) {
  const { onProgress, signal } = opening;
  onProgress({ ...STARTED, loaded: 0 });
  const loading = bridge.load(url, { device, threads, context, urls, onProgress, signal }); // beside it
  loading.catch(() => {}); // Python tells of it
  starting ??= start(urls, loading);
  starting.catch(() => (starting = null)); // so that another load tries again
  try {
    const serve = await starting;
    signal.throwIfAborted();
    onProgress({ ...STARTED, loaded: 1 });
    current = loading; // Python's to close from now on
    const found = await awaited(serve.open_model(url, parse_special === true));
    if (typeof found === "string") throw signal.aborted ? signal.reason : remade(JSON.parse(found));
    return opened(found, await loading, opening);
  } catch (error) {
    if (current === null) void loading.then(({ engine }) => engine.close(), () => {});
    throw error;
  } finally {
    current = null;
  }
}

/**
 * @param {Server} server
 * @param {Loaded} loaded
 * @param {Opening} opening
 * @returns {Opened}
 */
function opened(server, loaded, { onLost }) {
  const { device, refused, engine, texts, kind, untried } = loaded;
  const grammars = new Grammars(texts);
  /** @type {ModelImages | null} */
  let images = null;
  /** A request with what Python needs to know of its images. @param {Reply} reply */
  const withImages = async (reply) => {
    const { ModelImages } = await import("../images/prompt.js");
    images ??= await ModelImages.open(loaded);
    const { shown, images: found } = await images.described(/** @type {any} */ (reply.prompt));
    return /** @type {Reply & {images: Source[]}} */ ({ ...reply, prompt: shown, images: found });
  };
  engine.onLost = onLost;
  return {
    about: { name: server.name, context: server.context, canChat: server.can_chat, takesImages: takesImages(loaded), device, refused, untried },
    kind,
    async reply(reply, replying) {
      if (hasImages(reply.prompt)) reply = await withImages(reply);
      const make = await grammars.maker(reply.response_format);
      if (engine.captures) {
        const { foreseen } = await import("./foreseen.js");
        ({ reply, draws: engine.draws } = await foreseen(reply, texts, make !== null));
      }
      try {
        await makeReply(server, reply, make, replying);
      } catch (error) {
        throw engine.isLost ? Object.assign(/** @type {Error} */ (error), { lost: true }) : error;
      }
    },
    held(conversation) {
      const session = server.session(conversation);
      return session ? { session, tokens: JSON.parse(server.tokens(conversation)) } : null;
    },
    hold: (conversation, tokens) => server.hold(conversation, JSON.stringify(tokens)),
    forget: (conversation) => server.forget(conversation),
    close() {
      server.close();
      server.destroy();
    },
  };
}

/**
 * @param {Server} server
 * @param {Reply} reply
 * @param {MakeMatcher | null} make
 * @param {Replying} replying
 */
async function makeReply(server, reply, make, { signal, onChunk }) {
  const cancel = () => server.cancel();
  signal.addEventListener("abort", cancel);
  try {
    const asked = JSON.stringify(reply, (_, value) => (isOdd(value) ? `${value}` : value));
    const making = awaited(server.reply(asked, (...values) => onChunk(chunkOf(values)), make ?? undefined));
    if (signal.aborted) cancel();
    const failure = await making;
    if (failure) throw remade(JSON.parse(failure));
  } finally {
    signal.removeEventListener("abort", cancel);
  }
}

/** A number that JSON does not have; it goes as a text, for Python to read or to refuse. @param {unknown} value */
const isOdd = (value) => typeof value === "number" && !Number.isFinite(value);

/**
 * A chunk out of the values that Python gives, one by one: an object would take longer than all else of a step.
 *
 * @param {any[]} values
 * @returns {Chunk}
 */
function chunkOf([text, token, logprob, top, reason, by, prompt_tokens, cached_tokens, tokens, prefill_s, decode_s]) {
  return {
    text,
    token: token ?? null,
    logprob: logprob ?? null,
    top_logprobs: top ? JSON.parse(top) : [],
    finish_reason: reason ?? null,
    stopped_by: by ?? null,
    statistics: { prompt_tokens, cached_tokens, tokens, prefill_s, decode_s },
  };
}

/** Python's module serve.py. @param {Urls} urls @param {Promise<unknown>} loading */
async function start(urls, loading) {
  const python = await startPython(urls, loading);
  python.registerJsModule(BRIDGE, { load: () => current }); // progress and cancelling need no way through Python
  return python.pyimport("embedllm.web.serve");
}

/** The result of a coroutine of Python's. @param {any} coroutine */
async function awaited(coroutine) {
  try {
    return await coroutine;
  } finally {
    coroutine.destroy?.();
  }
}
