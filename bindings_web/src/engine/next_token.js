// The token after a step's row, chosen on the GPU, which puts it into the inputs of the next step.
//
// The host chooses from the same row by the same rule (src/sampling), with the same number drawn, and has the last
// word: rounding in float32, and flat rows of which it draws more than once, make the GPU's a guess that is wrong at times.

const WORKGROUP = 256;
const LISTED = 1024; // tokens that are sorted for a truncated draw
const LOOK = 255; // of a draw without top_k, how many of the best ones the host looks at first: src/sampling/sampler.js
/** Weight of those, of the best one's: the first that no more than LISTED have. */
const LEAST = [[1e-4, 1e-3, 1e-2, 3e-2], [0.1, 0.2, 0.4, 0.7]];
const USAGE = 64 | 8; // GPUBufferUsage: UNIFORM, COPY_DST

/**
 * A step's buffers: the row of logits, and what comes next.
 *
 * token: int64 [1]; length: int32 [1], of the sequence with that token, less one.
 *
 * @typedef {{logits: GPUBuffer, token: GPUBuffer, length: GPUBuffer}} StepBuffers
 */

/**
 * How the host will choose: temperature and truncations as Sampling has them, temperature 0 being greedy; uniform: the
 * number that it will draw for the row that comes after as many others, in [0, 1); note: tells that it drew one; left:
 * tokens still to be chosen, at most.
 *
 * @typedef {{temperature: number, top_k: number, top_p: number, min_p: number, uniform: (place: number) => number,
 *   note?: () => void, left?: () => number}} Draws
 */

/** The kernel for one size and type of rows. */
export class NextToken {
  #device;
  #pipeline;
  #options;

  /** @param {GPUDevice} device @param {number} vocabulary @param {"float32" | "float16"} type of logits */
  constructor(device, vocabulary, type) {
    this.#device = device;
    const code = source(vocabulary, type);
    this.#pipeline = device.createComputePipeline({
      layout: "auto",
      compute: { module: device.createShaderModule({ code }), entryPoint: "main" },
    });
    this.#options = device.createBuffer({ size: 32, usage: USAGE });
  }

  /** @param {StepBuffers} buffers */
  bound({ logits, token, length }) {
    return this.#device.createBindGroup({
      layout: this.#pipeline.getBindGroupLayout(0),
      entries: [logits, token, length, this.#options].map((buffer, binding) => ({ binding, resource: { buffer } })),
    });
  }

  /**
   * For commands that are submitted next.
   *
   * @param {Draws | null} draws null: the best token @param {number} place of the row's number
   */
  choose(draws, place) {
    const { temperature = 0, top_k = 0, top_p = 1, min_p = 0 } = draws ?? {};
    const drawn = temperature && draws ? draws.uniform(place) : 0;
    const options = Float32Array.of(temperature, top_p, min_p, drawn, Math.min(top_k, LISTED));
    this.#device.queue.writeBuffer(this.#options, 0, options);
  }

  /** @param {GPUCommandEncoder} commands @param {GPUBindGroup} group of bound() */
  encode(commands, group) {
    const pass = commands.beginComputePass();
    pass.setPipeline(this.#pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(1);
    pass.end();
  }

  close() {
    this.#options.destroy();
  }
}

/**
 * One workgroup: at 152,000 tokens a thread looks at 600, and a second dispatch would cost as much as it saves.
 *
 * draw_all: from the whole vocabulary, in the order of ids. draw_listed: from the best ones that the truncations leave, in
 * the order of their logits; where more are left than the host looks at, nothing is chosen: the host then draws from all
 * until the truncations leave the token, which the first one mostly is. The sums of draw_all are in values then. counts: of
 * the tokens with each of the least weights, and of those listed, which are put in order by a bitonic sort. What min_p
 * leaves out is not listed, but where top_k counts it.
 *
 * Of equal logits the lowest id is best, as in array_logits.js. A NaN is never best: the host finds it in the row.
 *
 * @param {number} vocabulary @param {"float32" | "float16"} type
 */
function source(vocabulary, type) {
  const isHalf = type === "float16";
  const look = isHalf
    ? "let both = unpack2x16float(logits[token / 2u]);\n  return select(both.x, both.y, (token & 1u) == 1u);"
    : "return logits[token];";
  return `
const SIZE = ${vocabulary}u;
const CHUNK = ${Math.ceil(vocabulary / WORKGROUP)}u;
struct Options { temperature: f32, top_p: f32, min_p: f32, drawn: f32, top_k: f32 }
@group(0) @binding(0) var<storage, read> logits: array<${isHalf ? "u32" : "f32"}>;
@group(0) @binding(1) var<storage, read_write> next: array<u32>;
@group(0) @binding(2) var<storage, read_write> length: array<i32>;
@group(0) @binding(3) var<uniform> options: Options;
var<workgroup> values: array<f32, ${WORKGROUP}>;
var<workgroup> places: array<u32, ${WORKGROUP}>;
var<workgroup> weights: array<f32, ${LISTED}>;
var<workgroup> tokens: array<u32, ${LISTED}>;
var<workgroup> counts: array<atomic<u32>, 9>;
var<workgroup> chosen: u32;
fn logit(token: u32) -> f32 {
  ${look}
}
fn weight(token: u32, best: f32) -> f32 { return exp((logit(token) - best) / options.temperature); }
fn goes_first(one: u32, other: u32) -> bool {
  return weights[one] > weights[other] || (weights[one] == weights[other] && tokens[one] < tokens[other]);
}
fn draw_all(lane: u32, best: f32) {
  let stop = min((lane + 1u) * CHUNK, SIZE);
  var sum = 0.0;
  for (var token = lane * CHUNK; token < stop; token++) { sum += weight(token, best); }
  values[lane] = sum;
  workgroupBarrier();
  var total = 0.0;
  var before = 0.0;
  for (var other = 0u; other < ${WORKGROUP}u; other++) {
    total += values[other];
    if (other < lane) { before = total; }
  }
  let target_sum = options.drawn * total;
  if (before <= target_sum && before + sum > target_sum) {
    var token = lane * CHUNK;
    for (var reached = before + weight(token, best); reached <= target_sum && token + 1u < stop;) {
      token++;
      reached += weight(token, best);
    }
    chosen = token;
  }
}
fn draw_listed(lane: u32, best: f32) {
  let floor = vec4f(select(options.min_p, 0.0, options.top_k > 0.0));
  var least = array(${LEAST.map((four) => `max(vec4f(${four}), floor)`)});
  var own = array(vec4u(), vec4u());
  for (var token = lane; token < SIZE; token += ${WORKGROUP}u) {
    let found = weight(token, best);
    for (var part = 0u; part < 2u; part++) { own[part] += select(vec4u(), vec4u(1), vec4f(found) >= least[part]); }
  }
  for (var each = 0u; each < 8u; each++) { atomicAdd(&counts[each], own[each / 4u][each % 4u]); }
  workgroupBarrier();
  var wanted = 1.0;
  for (var each = 8u; each > 0u; each--) {
    if (atomicLoad(&counts[each - 1u]) <= ${LISTED}u) { wanted = least[(each - 1u) / 4u][(each - 1u) % 4u]; }
  }
  for (var token = lane; token < SIZE; token += ${WORKGROUP}u) {
    let found = weight(token, best);
    if (found >= wanted) {
      let place = atomicAdd(&counts[8], 1u);
      if (place < ${LISTED}u) { weights[place] = found; tokens[place] = token; }
    }
  }
  workgroupBarrier();
  let found = min(atomicLoad(&counts[8]), ${LISTED}u);
  for (var place = lane; place < ${LISTED}u; place += ${WORKGROUP}u) {
    if (place >= found) { weights[place] = -1.0; tokens[place] = SIZE; }
  }
  for (var size = 2u; size <= ${LISTED}u; size *= 2u) {
    for (var stride = size / 2u; stride > 0u; stride /= 2u) {
      workgroupBarrier();
      for (var pair = lane; pair < ${LISTED / 2}u; pair += ${WORKGROUP}u) {
        let one = 2u * stride * (pair / stride) + pair % stride;
        let other = one + stride;
        if (goes_first(other, one) == ((one & size) == 0u)) {
          let kept = weights[one]; weights[one] = weights[other]; weights[other] = kept;
          let token = tokens[one]; tokens[one] = tokens[other]; tokens[other] = token;
        }
      }
    }
  }
  workgroupBarrier();
  if (lane != 0u || atomicLoad(&counts[8]) > ${LISTED}u) { return; }
  var left = found;
  var total = 0.0;
  if (options.top_k > 0.0) {
    left = min(left, u32(options.top_k));
    for (var place = 0u; place < left; place++) { total += weights[place]; }
  } else {
    for (var other = 0u; other < ${WORKGROUP}u; other++) { total += values[other]; }
  }
  var kept = 0u;
  var mass = 0.0;
  while (kept < left && (kept == 0u || (mass < options.top_p * total && weights[kept] >= options.min_p * weights[0]))) {
    mass += weights[kept];
    kept++;
  }
  let is_whole = kept < found || wanted <= options.min_p;
  if (options.top_k == 0.0 && (!is_whole || kept > ${LOOK}u)) { return; }
  var reached = weights[0];
  var place = 0u;
  while (place + 1u < kept && reached <= options.drawn * mass) {
    place++;
    reached += weights[place];
  }
  chosen = tokens[place];
}
@compute @workgroup_size(${WORKGROUP}) fn main(@builtin(local_invocation_index) lane: u32) {
  var most = -3.4e38;
  var token = 0u;
  for (var place = lane; place < SIZE; place += ${WORKGROUP}u) {
    let own = logit(place);
    if (own > most) { most = own; token = place; }
  }
  values[lane] = most;
  places[lane] = token;
  for (var half = ${WORKGROUP / 2}u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) {
      let other = lane + half;
      let is_earlier = values[other] == values[lane] && places[other] < places[lane];
      if (values[other] > values[lane] || is_earlier) {
        values[lane] = values[other];
        places[lane] = places[other];
      }
    }
  }
  workgroupBarrier();
  let best = values[0];
  if (lane == 0u) { chosen = places[0]; }
  workgroupBarrier();
  if (options.temperature > 0.0) {
    if (options.top_k == 0.0) { draw_all(lane, best); }
    if (options.top_k > 0.0 || options.top_p < 1.0 || options.min_p > 0.0) { draw_listed(lane, best); }
  }
  workgroupBarrier();
  if (lane == 0u) {
    next[0] = chosen;
    next[1] = 0u;
    length[0] += 1;
  }
}`;
}
