// The worker of a model: made here, or given by the page.

import { Link } from "./worker_client.js";

/** @import { Port } from "../worker/protocol.js" */

/**
 * worker: one that runs the module worker.js, or a function that makes one, for pages whose bundler or policy wants the
 * worker made in a certain way. One that is given stays the page's: it is not ended, and not made again when it dies.
 * urls: addresses of libraries in place of the usual ones (libraries.js).
 *
 * @typedef {{worker?: Port | (() => Port), urls?: import("../libraries.js").Urls}} Placed
 */

/**
 * @param {Placed} placed
 * @param {(error: Error) => void} onLost
 * @returns {Link}
 */
export function start({ worker }, onLost) {
  if (worker === undefined) return new Link(makeWorker(), onLost);
  if (typeof worker === "function") return new Link(worker(), onLost);
  return new Link(kept(worker), onLost);
}

/** A page's worker, which is not ended. @param {Port} worker @returns {Port} */
function kept(worker) {
  return {
    postMessage: (message) => worker.postMessage(message),
    addEventListener: (kind, listener, options) => worker.addEventListener(kind, listener, options),
    start: () => worker.start?.(),
  };
}

function makeWorker() {
  const here = import.meta.url; // where Vite puts a bundle; of webpack's the file: address of the source
  const isElsewhere = here.startsWith("http") && new URL(here).origin !== location.origin;
  // bundlers look for this very line
  if (!isElsewhere) return new Worker(new URL("../worker.js", import.meta.url), { type: "module" });
  // a browser starts no worker of another origin, but lets one of this origin import from there
  const { href } = new URL("../worker.js", here); // by a name, so that bundlers do not copy or inline the file
  const source = new Blob([`import ${JSON.stringify(href)};`], { type: "text/javascript" });
  const address = URL.createObjectURL(source);
  const worker = new Worker(address, { type: "module" });
  for (const kind of ["message", "error"]) worker.addEventListener(kind, () => URL.revokeObjectURL(address), { once: true });
  return worker;
}
