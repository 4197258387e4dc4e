/** Walks the syntax tree of a chat template and writes what Python's Jinja would write. */

import { dotted, slice, subscript } from "./methods.js";
import { filter, isIn, testNamed } from "./filters.js";
import { operate } from "./operators.js";
import { GENERATION, GROUP, TEST, WITH } from "./parse.js";
import {
  Float, hashable, isEqual, isTrue, iterate, Markup, Namespace, numberOf, PythonError, text, tuple, typeError, typeName, Undefined, unsupported,
} from "./values.js";

/** @typedef {import("./values.js").Value} Value */
/** @typedef {import("./methods.js").Callable} Callable */
/** @typedef {import("./parse.js").Node} Node */
/** @typedef {"break" | "continue" | undefined} Jump */

/** Names that are values wherever they stand. @type {Record<string, Value>} */
const CONSTANTS = { true: true, True: true, false: false, False: false, none: null, None: null };
const MOST_STEPS = 2_000_000; // rounds of loops and calls of macros, as in Python: a template without an end
let steps = 0; // of the template that is rendered; rendering never waits
const COMPARES = /^(==|!=|<|>|<=|>=|in|not in)$/;

/** Names and their values, and those of what lies around. */
export class Scope {
  /** @param {Iterable<[string, Value]>} [names] @param {Scope} [outer] */
  constructor(names = [], outer) {
    this.names = new Map(names);
    this.outer = outer;
  }

  /** @param {string} name @returns {Value} */
  get(name) {
    /** @type {Scope | undefined} */
    let scope = this;
    while (scope && !scope.names.has(name)) scope = scope.outer;
    return scope ? scope.names.get(name) : new Undefined(`'${name}' is undefined`);
  }
}

/** The text of a template. @param {Node[]} body @param {Scope} scope */
export function renderTemplate(body, scope) {
  steps = 0;
  return render(body, scope);
}

/** Counts a round of a loop or the call of a macro. @param {number} weight */
function step(weight) {
  steps += weight;
  if (steps > MOST_STEPS) throw new PythonError("SecurityError", `it takes more than ${MOST_STEPS} rounds of loops and calls of macros`);
}

/** The text of some statements. @param {Node[]} body @param {Scope} scope */
function render(body, scope) {
  /** @type {string[]} */
  const out = [];
  run(body, scope, out);
  return out.join("");
}

/** @param {Node[]} body @param {Scope} scope @param {string[]} out @returns {Jump} */
function run(body, scope, out) {
  for (const node of body) {
    const jump = runOne(node, scope, out);
    if (jump) return jump;
  }
  return undefined;
}

/** @param {Node} node @param {Scope} scope @param {string[]} out @returns {Jump} */
function runOne(node, scope, out) {
  switch (node.type) {
    case "Comment": return undefined;
    case "If": return run(isTrue(evaluate(node.test, scope)) ? node.body : node.alternate, scope, out);
    case "For": return runLoop(node, scope, out);
    case "Break": return "break";
    case "Continue": return "continue";
    case "Set": {
      const value = node.value ? evaluate(node.value, scope) : render(node.body, new Scope([], scope));
      assign(node.assignee, value, scope);
      return undefined;
    }
    case "Macro":
      scope.names.set(node.name.value, macro(node.name.value, node.args, node.body, scope));
      return undefined;
    case "CallStatement":
      out.push(runCall(node, scope));
      return undefined;
    case "FilterStatement":
      out.push(text(filtered(node.filter, render(node.body, new Scope([], scope)), scope)));
      return undefined;
    default:
      out.push(text(evaluate(node, scope)));
      return undefined;
  }
}

/** @param {Node} node @param {Scope} scope @param {string[]} out @returns {Jump} */
function runLoop(node, scope, out) {
  const isSelecting = node.iterable.type === "SelectExpression";
  let items = iterate(evaluate(isSelecting ? node.iterable.lhs : node.iterable, scope));
  if (isSelecting) items = items.filter((item) => isTrue(evaluate(node.iterable.test, assign(node.loopvar, item, new Scope([], scope)))));
  let isEmpty = true;
  /** @type {Value} */
  let seen;
  for (const [at, item] of items.entries()) {
    step(1);
    const inner = new Scope([["loop", loopAt(items, at, (values) => {
      const isChanged = seen === undefined || !isEqual(seen, values);
      seen = values;
      return isChanged;
    })]], scope);
    const jump = run(node.body, assign(node.loopvar, item, inner), out);
    if (jump === "break") break;
    if (jump !== "continue") isEmpty = false;
  }
  return isEmpty ? run(node.defaultBlock, new Scope([], scope), out) : undefined;
}

/** What `loop` is. @param {Value[]} items @param {number} at @param {(values: Value[]) => boolean} changed */
function loopAt(items, at, changed) {
  const count = items.length;
  return new Namespace(new Map(Object.entries({
    index: at + 1, index0: at, revindex: count - at, revindex0: count - at - 1, length: count, depth: 1, depth0: 0,
    first: at === 0, last: at === count - 1,
    previtem: at > 0 ? items[at - 1] : new Undefined("there is no previous item"),
    nextitem: at + 1 < count ? items[at + 1] : new Undefined("there is no next item"),
    cycle: /** @type {Callable} */ ((args) => (args.length ? args[at % args.length] : typeError("no items for cycling given"))),
    changed: /** @type {Callable} */ (changed),
  })));
}

/** Give a value to a name, several names, or a field of a namespace. @param {Node} target @param {Value} value @param {Scope} scope */
function assign(target, value, scope) {
  if (target.type === "Identifier") {
    scope.names.set(target.value, value);
  } else if (target.type === "TupleLiteral") {
    const items = iterate(value);
    if (items.length !== target.value.length) {
      throw new PythonError("ValueError", `${target.value.length} values to unpack were expected, found ${items.length}`);
    }
    items.forEach((item, at) => assign(target.value[at], item, scope));
  } else if (target.type === "MemberExpression" && !target.computed) {
    const space = evaluate(target.object, scope);
    if (!(space instanceof Namespace)) throw new PythonError("TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    space.values.set(publicName(target.property.value), value);
  } else {
    unsupported(`assigning to a ${target.type}`);
  }
  return scope;
}

/** @param {string} name */
function publicName(name) {
  if (!name.startsWith("_")) return name;
  throw new PythonError("SecurityError", `a namespace cannot hold '${name}': it begins with an underscore`);
}

/** @param {string} name @param {Node[]} parameters @param {Node[]} body @param {Scope} scope where it was defined @returns {Callable} */
function macro(name, parameters, body, scope) {
  const names = parameters.map((one) => (one.type === "Identifier" ? one.value : one.key.value));
  const special = ["varargs", "kwargs", "caller"].filter((word) => !names.includes(word) && mentions(body, word));
  return (args, named) => {
    step(20);
    const rest = new Map(named);
    const inner = new Scope([], scope);
    names.forEach((parameter, at) => {
      const isNamed = at >= args.length && rest.has(parameter);
      const missing = new Undefined(`parameter '${parameter}' was not provided`);
      inner.names.set(parameter, isNamed ? rest.get(parameter) : at < args.length ? args[at] : missing);
      if (isNamed) rest.delete(parameter);
      else if (at >= args.length && parameters[at].type !== "Identifier") inner.names.set(parameter, evaluate(parameters[at].value, inner));
    });
    if (special.includes("caller")) {
      inner.names.set("caller", rest.get("caller") ?? new Undefined("No caller defined"));
      rest.delete("caller");
    }
    if (special.includes("kwargs")) inner.names.set("kwargs", rest);
    else if (rest.size) typeError(`macro '${name}' takes no keyword argument '${[...rest.keys()][0]}'`);
    if (special.includes("varargs")) inner.names.set("varargs", tuple(...args.slice(names.length)));
    else if (args.length > names.length) typeError(`macro '${name}' takes not more than ${names.length} argument(s)`);
    return render(body, inner);
  };
}

/** Whether a name stands somewhere in a tree. @param {unknown} node @param {string} name @returns {boolean} */
function mentions(node, name) {
  if (node === null || typeof node !== "object") return false;
  const one = /** @type {Node} */ (node);
  if (one.type === "Identifier" && one.value === name) return true;
  const parts = node instanceof Map ? [...node].flat() : Object.values(one);
  return parts.some((part) => mentions(part, name));
}

/** {% call %}, and the blocks that parse.js writes as calls. @param {Node} node @param {Scope} scope */
function runCall(node, scope) {
  const name = node.call.callee.value;
  if (name === GENERATION) return render(node.body, new Scope([], scope));
  if (name === WITH) {
    const given = (node.callerArgs ?? []).map((/** @type {Node} */ one) =>
      one.type === "Identifier" ? unsupported("'with' without a value") : [one.key.value, evaluate(one.value, scope)]);
    return render(node.body, new Scope(given, scope));
  }
  const callee = evaluate(node.call.callee, scope);
  const [args, named] = callArguments(node.call.args, scope);
  named.set("caller", macro("caller", node.callerArgs ?? [], node.body, scope));
  return text(invoke(callee, args, named));
}

/** @param {Node[]} nodes @param {Scope} scope @returns {[Value[], Map<string, Value>]} */
function callArguments(nodes, scope) {
  /** @type {Value[]} */
  const args = [];
  const named = new Map();
  for (const node of nodes) {
    if (node.type === "SpreadExpression") args.push(...iterate(evaluate(node.argument, scope)));
    else if (node.type === "KeywordArgumentExpression") named.set(node.key.value, evaluate(node.value, scope));
    else if (node.type === "KeywordSpreadExpression") for (const [name, value] of evaluate(node.argument, scope)) named.set(name, value);
    else args.push(evaluate(node, scope));
  }
  return [args, named];
}

/** @param {Value} callee @param {Value[]} args @param {Map<string, Value>} named @returns {Value} */
function invoke(callee, args, named) {
  if (callee instanceof Undefined) callee.fail();
  return typeof callee === "function" ? callee(args, named) : typeError(`'${typeName(callee)}' object is not callable`);
}

/** @param {Node} node a filter's name, or a call of it @param {Value} value @param {Scope} scope @returns {Value} */
function filtered(node, value, scope) {
  const callee = node.type === "CallExpression" ? node.callee : node;
  if (callee.type !== "Identifier") return unsupported("taking a field of a filter's result without parentheses");
  if (callee.value === GROUP) return value;
  const [args, named] = node.type === "CallExpression" ? callArguments(node.args, scope) : [[], new Map()];
  if (!callee.value.startsWith(TEST)) return filter(callee.value, value, args, named);
  const [, negation, name] = /** @type {RegExpMatchArray} */ (callee.value.match(/^is (not )?(.*)$/));
  return testNamed(name)(value, ...args) !== Boolean(negation);
}

/** @param {Node} node @param {Scope} scope @returns {Value} */
export function evaluate(node, scope) {
  switch (node.type) {
    case "Identifier": return Object.hasOwn(CONSTANTS, node.value) ? CONSTANTS[node.value] : scope.get(node.value);
    case "StringLiteral": case "IntegerLiteral": return node.value;
    case "FloatLiteral": return new Float(node.value);
    case "ArrayLiteral": return node.value.map((/** @type {Node} */ one) => evaluate(one, scope));
    case "TupleLiteral": return tuple(...node.value.map((/** @type {Node} */ one) => evaluate(one, scope)));
    case "ObjectLiteral": return new Map(Array.from(node.value, ([key, value]) => [keyOf(evaluate(key, scope)), evaluate(value, scope)]));
    case "MemberExpression": return member(node, scope);
    case "CallExpression": {
      const callee = evaluate(node.callee, scope);
      return invoke(callee, ...callArguments(node.args, scope));
    }
    case "FilterExpression": return filtered(node.filter, evaluate(node.operand, scope), scope);
    case "TestExpression": return testNamed(node.test.value)(evaluate(node.operand, scope)) !== node.negate;
    case "Ternary": return evaluate(isTrue(evaluate(node.condition, scope)) ? node.trueExpr : node.falseExpr, scope);
    case "SelectExpression":
      return isTrue(evaluate(node.test, scope)) ? evaluate(node.lhs, scope) : new Undefined("the inline if-expression is false and has no else");
    case "UnaryExpression": return unary(node.operator.value, evaluate(node.argument, scope));
    case "BinaryExpression": return binary(node, scope);
    default: return unsupported(`a ${node.type}`);
  }
}

/** @param {Value} key */
function keyOf(key) {
  return key instanceof Markup || key instanceof Float ? unsupported(`a ${typeName(key)} as a key`) : hashable(key);
}

/** @param {Node} node @param {Scope} scope */
function member({ object, property, computed }, scope) {
  const value = evaluate(object, scope);
  if (!computed) return property.type === "Identifier" ? dotted(value, property.value) : subscript(value, property.value);
  if (property.type !== "SliceExpression") return subscript(value, evaluate(property, scope));
  return slice(value, [property.start, property.stop, property.step].map((bound) => bound && evaluate(bound, scope)));
}

/** @param {string} operator @param {Value} value */
function unary(operator, value) {
  if (operator === "not") return !isTrue(value);
  if (value instanceof Undefined) value.fail();
  const number = numberOf(value) ?? typeError(`bad operand type for unary ${operator}: '${typeName(value)}'`);
  const signed = operator === "-" ? -number : number;
  return value instanceof Float ? new Float(signed) : signed + 0;
}

/** @param {Node} node @param {Scope} scope */
function binary(node, scope) {
  const { operator: { value: operator }, left, right } = node;
  if (COMPARES.test(operator)) return comparison(node, scope);
  if (operator === "~" && left.type === "BinaryExpression" && /^[-+]$/.test(left.operator.value)) {
    // the library reads 'a + b ~ c' from the left; in Jinja ~ binds tighter
    return operate(left.operator.value, evaluate(left.left, scope), operate("~", evaluate(left.right, scope), evaluate(right, scope)));
  }
  const first = evaluate(left, scope);
  if (operator === "and") return isTrue(first) ? evaluate(right, scope) : first;
  if (operator === "or") return isTrue(first) ? first : evaluate(right, scope);
  return operate(operator, first, evaluate(right, scope));
}

/** 'a < b in c' is 'a < b and b in c'; parse.js marks what stands in parentheses. @param {Node} node @param {Scope} scope */
function comparison(node, scope) {
  const links = [node];
  while (links[0].left.type === "BinaryExpression" && COMPARES.test(links[0].left.operator.value)) links.unshift(links[0].left);
  let first = evaluate(links[0].left, scope);
  /** @type {Value} */
  let result;
  for (const { operator: { value: operator }, right } of links) {
    const second = evaluate(right, scope);
    const isMember = operator === "in" || operator === "not in";
    result = isMember ? isIn(first, second) === (operator === "in") : operate(operator, first, second);
    if (!result) return result;
    first = second;
  }
  return result;
}

