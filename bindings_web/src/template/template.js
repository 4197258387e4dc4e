/** Runs a chat template, which came with a model and is trusted with nothing: the twin of embedllm/text/jinja_sandbox.py.
 *
 * A template sees values of its own kinds only (values.js) and what is listed here, never an object of the page.
 */

import { TemplateError, reason } from "../errors.js";
import { renderTemplate, Scope } from "./evaluate.js";
import { parseTemplate } from "./parse.js";
import { strftime } from "./time.js";
import { fromJson, hashable, iterate, Namespace, PythonError, Range, text, typeError, Undefined, unsupported } from "./values.js";

/** @typedef {import("./values.js").Value} Value */
/** @typedef {import("./methods.js").Callable} Callable */
/** @typedef {import("./methods.js").Named} Named */

const MOST_NUMBERS = 100_000; // of range(), as in Jinja's sandbox

/** What raise_exception raises. */
class Refusal extends Error {}

export class SandboxedTemplate {
  #body;
  #clock;

  /**
   * Raises TemplateError when the text is not a template, or uses what a browser lacks.
   *
   * @param {import("./parse.js").Library} library
   * @param {string} source
   * @param {() => Date} clock the time that strftime_now formats
   */
  constructor(library, source, clock) {
    this.#clock = clock;
    try {
      this.#body = parseTemplate(library, source).body;
    } catch (error) {
      throw new TemplateError(
        `the chat template is not valid Jinja, or uses what the template engine of a browser lacks: ${reason(error)}`, { cause: error },
      );
    }
  }

  /**
   * The text that the template makes of its variables.
   *
   * Raises TemplateError, with the template's own words, when it refuses or fails.
   * @param {Record<string, unknown>} variables in JSON's types
   */
  render(variables) {
    const given = Object.entries(variables).map(([name, value]) => /** @type {[string, Value]} */ ([name, fromJson(value)]));
    try {
      return renderTemplate(this.#body, new Scope(given, new Scope(names(this.#clock))));
    } catch (error) {
      if (error instanceof Refusal) throw new TemplateError(`the chat template refuses the messages: ${error.message}`, { cause: error });
      const kind = error instanceof PythonError ? error.kind : error instanceof RangeError ? "RecursionError" : "error";
      throw new TemplateError(`the chat template fails on these messages: ${kind}: ${reason(error)}`, { cause: error });
    }
  }
}

/** The names that are there without being given. @param {() => Date} clock @returns {[string, Value][]} */
function names(clock) {
  return [
    ["range", /** @type {Callable} */ ((args) => range(args))],
    ["dict", Object.assign(dict, { ".fromkeys": fromKeys })],
    ["namespace", namespace],
    ["raise_exception", /** @type {Callable} */ (([message]) => { throw new Refusal(text(message)); })],
    // what Python's Jinja has besides: not silently an undefined value
    ...["lipsum", "cycler", "joiner", "self"].map((name) => /** @type {[string, Value]} */ ([name, () => unsupported(`'${name}'`)])),
    ["strftime_now", /** @type {Callable} */ (([form]) => strftime(clock(), text(form)))],
  ];
}

/** @param {Value[]} args */
function range(args) {
  if (!args.length || args.length > 3 || args.some((value) => typeof value !== "number")) typeError("range() expects 1 to 3 whole numbers");
  const [start, stop, step = 1] = args.length === 1 ? [0, ...args] : args;
  if (step === 0) throw new PythonError("ValueError", "range() arg 3 must not be zero");
  const count = Math.max(0, Math.ceil((stop - start) / step));
  if (count > MOST_NUMBERS) throw new PythonError("OverflowError", `Range too big. The sandbox blocks ranges larger than ${MOST_NUMBERS}.`);
  const numbers = Range.from({ length: count }, (_, at) => start + at * step);
  return Object.assign(numbers, { text: `range(${start}, ${stop}${step === 1 ? "" : `, ${step}`})` });
}

/** @param {Value[]} args @param {Named} named @returns {Map<Value, Value>} */
function dict(args, named) {
  if (args.length > 1) typeError(`dict expected at most 1 argument, got ${args.length}`);
  if (args[0] instanceof Undefined) args[0].fail();
  const pairs = args.length === 0 ? [] : args[0] instanceof Map ? [...args[0]] : iterate(args[0]).map((pair) => iterate(pair));
  if (pairs.some((pair) => pair.length !== 2)) throw new PythonError("ValueError", "a dictionary is made of pairs");
  return new Map([...pairs.map(([key, value]) => /** @type {[Value, Value]} */ ([hashable(key), value])), ...named]);
}

/** @type {Callable} */
const fromKeys = ([keys, value = null]) => new Map(iterate(keys).map((key) => [key, value]));

/** @type {Callable} */
function namespace(args, named) {
  const values = dict(args, named);
  for (const name of values.keys()) {
    if (String(name).startsWith("_")) throw new PythonError("SecurityError", `a namespace cannot hold '${name}': it begins with an underscore`);
  }
  return new Namespace(values);
}

