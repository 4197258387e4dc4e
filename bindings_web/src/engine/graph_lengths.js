// A folder's graph with lengths as inputs, in the place of the attention mask that they are computed from.
//
// A captured step has the same buffers and shapes each time, and all of it on the GPU. So attention is given
// `seqlens_k` int32 [1] from a buffer, and `total_sequence_length` int32 [1], which the host knows. The desktop's twin,
// which also adds the choice of a token: backends/gpu/webgpu_graph.py. Numbers of fields: onnx.proto3.

const MASK = "attention_mask", SEQLENS = "seqlens_k", TOTAL = "total_sequence_length";
const POSITIONS = "lengths.positions"; // of tokens, where something beside attention reads them: export/onnx/decoder.py
const GRAPH = 7; // of a model
const NODE = 1, INITIALIZER = 5, INPUT = 11; // of a graph
const [IN, OUT, OPERATOR, ATTRIBUTE] = [1, 2, 4, 5]; // of a node
const INT32 = 6, INT64 = 7;
const [utf8, text] = [new TextDecoder(), new TextEncoder()];

/**
 * @typedef {{number: number, start: number, body: number, stop: number}} Field start: of its key; body: of its content
 * @typedef {{field: Field, operator: string, inputs: string[], outputs: string[]}} Node
 */

/**
 * The model with these inputs; null where its mask is used for more than lengths, or attention has a window, which a
 * session that captures gets wrong (docs/webgpu.md#faults).
 *
 * @param {Uint8Array} model @returns {Uint8Array<ArrayBuffer> | null}
 */
export function withLengths(model) {
  const parts = [...fields(model)];
  const whole = parts.find(({ number }) => number === GRAPH);
  const graph = whole && changed(model.subarray(whole.body, whole.stop));
  if (!graph) return null;
  return joined(parts.map((part) => (part === whole ? message(GRAPH, graph) : model.subarray(part.start, part.stop))));
}

/** @param {Uint8Array} graph */
function changed(graph) {
  const all = [...fields(graph)];
  const nodes = all.filter(({ number }) => number === NODE).map((field) => read(graph, field));
  const attentions = new Set(nodes.filter(({ operator }) => operator === "GroupQueryAttention"));
  const own = new Set(); // those that make lengths of the mask
  const made = new Map(nodes.flatMap((node) => node.outputs.map((name) => [name, node])));
  const collect = (/** @type {string} */ name) => {
    const node = made.get(name);
    if (!node || own.has(node)) return;
    own.add(node);
    node.inputs.forEach(collect);
  };
  const lengths = new Set([...attentions].map(({ inputs }) => `${inputs[5]} ${inputs[6]}`));
  if (lengths.size !== 1 || [...attentions].some(({ field }) => hasWindow(graph, field))) return null;
  for (const { inputs } of attentions) inputs.slice(5, 7).forEach(collect);
  const counted = made.has(POSITIONS) ? countedPositions() : [];
  collect(POSITIONS);
  const isOwn = new Set([MASK, ...[...own].flatMap(({ outputs }) => outputs)]);
  isOwn.delete(POSITIONS); // which are made in another way
  const others = nodes.filter((node) => !own.has(node));
  const reads = others.filter(({ inputs }) => inputs.some((name) => isOwn.has(name)));
  if (reads.some((node) => !attentions.has(node))) return null;
  const dropped = new Set([...own].map(({ field }) => field));
  const rewritten = new Map([...attentions].map(({ field }) => [field, withInputs(graph, field)]));
  const kept = all.flatMap((field) => {
    if (dropped.has(field) || (field.number === INPUT && nameOf(graph, field) === MASK)) return [];
    return [rewritten.get(field) ?? graph.subarray(field.start, field.stop)];
  });
  return joined([...counted, ...kept, scalarInput(SEQLENS), scalarInput(TOTAL)]);
}

/** Nodes that count positions back from the length, in int32, which WebGPU has all of these for. */
function countedPositions() {
  const at = (/** @type {string} */ name) => `${POSITIONS}.${name}`;
  return [
    node("Cast", ["input_ids"], at("ids"), { to: INT32 }),
    node("Sub", [at("ids"), at("ids")], at("none")),
    node("Add", [at("none"), at("one")], at("each")),
    node("CumSum", [at("each"), at("one")], at("behind"), { exclusive: 1, reverse: 1 }),
    node("Sub", [SEQLENS, at("behind")], at("places")),
    node("Cast", [at("places")], POSITIONS, { to: INT64 }),
    message(INITIALIZER, joined([integer(2, INT32), message(8, text.encode(at("one"))), message(9, Uint8Array.of(1, 0, 0, 0))])),
  ];
}

/** @param {string} operator @param {string[]} inputs @param {string} output @param {Record<string, number>} [attributes] */
function node(operator, inputs, output, attributes = {}) {
  const whole = Object.entries(attributes).map(([name, value]) =>
    message(ATTRIBUTE, joined([message(1, text.encode(name)), integer(3, value), integer(20, 2)])));
  return message(NODE, joined([...inputs.map((name) => message(IN, text.encode(name))), message(OUT, text.encode(output)),
    message(OPERATOR, text.encode(operator)), ...whole]));
}

/** @param {Uint8Array} graph @param {Field} field @returns {Node} */
function read(graph, field) {
  /** @type {Node} */
  const node = { field, operator: "", inputs: [], outputs: [] };
  for (const { number, body, stop } of fields(graph, field.body, field.stop)) {
    const content = () => utf8.decode(graph.subarray(body, stop));
    if (number === IN) node.inputs.push(content());
    else if (number === OUT) node.outputs.push(content());
    else if (number === OPERATOR) node.operator = content();
  }
  return node;
}

/** Whether a node's attribute local_window_size is above 0. @param {Uint8Array} graph @param {Field} node */
function hasWindow(graph, node) {
  for (const field of fields(graph, node.body, node.stop)) {
    if (field.number !== ATTRIBUTE || nameOf(graph, field) !== "local_window_size") continue;
    const value = [...fields(graph, field.body, field.stop)].find(({ number }) => number === 3);
    const isNegative = value && value.stop - value.body === 10; // bytes of a varint
    if (value && !isNegative && graph[value.body] !== 0) return true;
  }
  return false;
}

/** An attention whose lengths are the new inputs. @param {Uint8Array} graph @param {Field} node */
function withInputs(graph, node) {
  let place = 0;
  return message(NODE, joined([...fields(graph, node.body, node.stop)].map((field) => {
    const name = field.number === IN ? new Map([[5, SEQLENS], [6, TOTAL]]).get(place++) : undefined;
    return name ? message(IN, text.encode(name)) : graph.subarray(field.start, field.stop);
  })));
}

/** @param {Uint8Array} bytes @param {Field} field whose first field is its name */
function nameOf(bytes, field) {
  const name = [...fields(bytes, field.body, field.stop)].find(({ number }) => number === 1);
  return name ? utf8.decode(bytes.subarray(name.body, name.stop)) : "";
}

/** A graph's input int32 [1]. @param {string} name */
function scalarInput(name) {
  const shape = message(2, message(1, integer(1, 1)));
  const tensor = message(1, joined([integer(1, INT32), shape]));
  return message(INPUT, joined([message(1, text.encode(name)), message(2, tensor)]));
}

/**
 * The fields of a message.
 *
 * @param {Uint8Array} bytes @param {number} [start] @param {number} [end]
 * @returns {Generator<Field>}
 */
function* fields(bytes, start = 0, end = bytes.length) {
  let at = start;
  const varint = () => {
    let [value, factor] = [0, 1];
    for (;;) {
      const byte = bytes[at++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
      factor *= 128;
    }
  };
  while (at < end) {
    const begun = at;
    const key = varint();
    const [number, type] = [Math.floor(key / 8), key % 8];
    let body = at;
    if (type === 0) varint();
    else if (type === 1) at += 8;
    else if (type === 5) at += 4;
    else {
      const length = varint();
      body = at;
      at += length;
    }
    yield { number, start: begun, body, stop: at };
  }
}

/** A field with a number below 128. @param {number} field @param {number} value */
const integer = (field, value) => Uint8Array.from(field < 16 ? [8 * field, value] : [(8 * field) % 128 + 128, field >> 4, value]);

/** @param {number} number @param {Uint8Array} content */
function message(number, content) {
  const head = [8 * number + 2];
  for (let rest = content.length; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) {
      head.push(rest);
      break;
    }
    head.push((rest % 128) + 128);
  }
  return joined([Uint8Array.from(head), content]);
}

/** @param {Uint8Array[]} parts */
function joined(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}
