// Every error that embedllm raises on purpose, the twins of embedllm/errors.py; a caller's slip is a plain RangeError.
//
// EmbedError
//   PackageError            not a usable folder: missing, damaged, or newer than this version
//   TemplateError           the model has no chat template, or its template refuses the messages
//   DeviceError
//     DeviceUnavailable     nothing can run it; .tried says what was tried and why not
//   ContextFull             more tokens than the folder holds; .tokens and .limit
//   Interrupted             a feed was stopped from outside

/** Base of all errors of this library. `name` is that of the class, in minified code too. */
export class EmbedError extends Error {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = "EmbedError";
  }
}

/** The folder is not a usable model package. */
export class PackageError extends EmbedError {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = "PackageError";
  }
}

/** Messages could not be turned into a prompt. */
export class TemplateError extends EmbedError {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = "TemplateError";
  }
}

/** A device failed. */
export class DeviceError extends EmbedError {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = "DeviceError";
  }
}

/** No device that was asked for can run the model. */
export class DeviceUnavailable extends DeviceError {
  /**
   * @param {string} message
   * @param {{tried?: [device: string, reason: string, remedy: string][]} & ErrorOptions} [options]
   */
  constructor(message, { tried = [], ...options } = {}) {
    super(message, options);
    this.name = "DeviceUnavailable";
    this.tried = tried;
  }
}

/** The sequence does not fit into the context; nothing was cut off. */
export class ContextFull extends EmbedError {
  /**
   * @param {string} message
   * @param {{tokens: number, limit: number} & ErrorOptions} options tokens: how many there are, or would be;
   *   limit: how many the folder holds
   */
  constructor(message, { tokens, limit, ...options }) {
    super(message, options);
    this.name = "ContextFull";
    this.tokens = tokens;
    this.limit = limit;
  }
}

/** A feed was stopped from outside; the session stands where it stood before that feed. */
export class Interrupted extends EmbedError {
  /** @param {string} [message] @param {ErrorOptions} [options] */
  constructor(message = "the feed was stopped from outside", options) {
    super(message, options);
    this.name = "Interrupted";
  }
}

/** Part of a prompt is an image that nobody holds any more: a caller's slip, told from what a device does wrong. */
export class ImageIsGone extends RangeError {}

/** What an error says, or anything else that was thrown. @param {unknown} error */
export const reason = (error) => (error instanceof Error ? error.message : String(error));

const KINDS = { EmbedError, PackageError, TemplateError, DeviceError, Interrupted };

/**
 * An error as an object that can be posted between threads, which would make a plain Error of it.
 *
 * @typedef {{name: string, message: string, stack?: string, tried?: [string, string, string][], tokens?: number,
 *   limit?: number}} PostedError
 * @param {unknown} error
 * @returns {PostedError}
 */
export function postedError(error) {
  if (!(error instanceof Error)) return { name: "Error", message: String(error) };
  const { name, message, stack } = error;
  if (error instanceof DeviceUnavailable) return { name, message, stack, tried: error.tried };
  if (error instanceof ContextFull) return { name, message, stack, tokens: error.tokens, limit: error.limit };
  return { name, message, stack };
}

/**
 * The error that postedError() was given, with the stack of where it happened; an Error with its name if the class is
 * none of these.
 *
 * @param {PostedError} posted
 * @returns {Error}
 */
export function remadeError(posted) {
  const error = remade(posted);
  if (posted.stack !== undefined) error.stack = posted.stack;
  return error;
}

/** @param {PostedError} posted @returns {Error} */
function remade({ name, message, tried, tokens = NaN, limit = NaN }) {
  if (name === "DeviceUnavailable") return new DeviceUnavailable(message, { tried });
  if (name === "ContextFull") return new ContextFull(message, { tokens, limit });
  if (name === "RangeError") return new RangeError(message);
  if (name === "TypeError") return new TypeError(message);
  if (Object.hasOwn(KINDS, name)) return new KINDS[/** @type {keyof typeof KINDS} */ (name)](message);
  const error = new Error(message);
  error.name = name;
  return error;
}
