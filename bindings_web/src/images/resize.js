// Resizes pixels exactly as Pillow does, whatever the browser: its own resampling differs from that of others.
//
// Separable: rows first, rounded and clipped to 8 bits, then columns. Kernels widen when an image becomes smaller
// (antialias); their weights have 22 bits behind the point. Source: Pillow's src/libImaging/Resample.c.

/** @typedef {{width: number, height: number, data: Uint8Array}} Rgb data: [height, width, 3] */
/** @typedef {{first: Int32Array, count: Int32Array, weights: Int32Array, most: number}} Taps of each place, `most` weights */

const WEIGHT_ONE = 2 ** 22;

/** @param {number} x */
const sinc = (x) => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));

/** Reach and value of each kernel, by Pillow's number; 0, the nearest pixel, has none. @type {Record<number, [number, (x: number) => number]>} */
const KERNELS = {
  1: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)], // Lanczos
  2: [1, (x) => Math.max(0, 1 - Math.abs(x))], // bilinear
  3: [2, cubic],
  4: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)], // box
  5: [1, (x) => (Math.abs(x) >= 1 ? 0 : x === 0 ? 1 : sinc(x) * (0.54 + 0.46 * Math.cos(x * Math.PI)))], // Hamming
};

/** @param {number} x */
function cubic(x) {
  const [a, distance] = [-0.5, Math.abs(x)];
  if (distance < 1) return ((a + 2) * distance - (a + 3)) * distance * distance + 1;
  return distance < 2 ? (((distance - 5) * distance + 8) * distance - 4) * a : 0;
}

/**
 * The image in another size. resample: Pillow's number of the kernel, 0 to 5.
 *
 * @param {Rgb} image @param {number} width @param {number} height @param {number} resample
 * @returns {Rgb}
 */
export function resized(image, width, height, resample) {
  if (width !== image.width) {
    const made = { width, height: image.height, data: new Uint8Array(3 * width * image.height) };
    const taps = tapsOf(image.width, width, resample);
    for (let row = 0; row < image.height; row++) {
      for (let place = 0; place < width; place++) {
        mix(taps, place, image.data, 3 * row * image.width, 3, made.data, 3 * (row * width + place), 3);
      }
    }
    image = made;
  }
  if (height !== image.height) {
    const made = { width, height, data: new Uint8Array(3 * width * height) };
    const taps = tapsOf(image.height, height, resample);
    const line = 3 * width;
    for (let place = 0; place < height; place++) mix(taps, place, image.data, 0, line, made.data, place * line, line);
    image = made;
  }
  return image;
}

/**
 * Sums weighted neighbours, `count` values beside each other.
 *
 * @param {Taps} taps @param {number} place @param {Uint8Array} source @param {number} start @param {number} step from
 *   one neighbour to the next @param {Uint8Array} target @param {number} at @param {number} count
 */
function mix({ first, count: counts, weights, most }, place, source, start, step, target, at, count) {
  const begin = start + first[place] * step;
  for (let value = 0; value < count; value++) {
    let sum = WEIGHT_ONE / 2; // rounds
    for (let tap = 0, from = begin + value; tap < counts[place]; tap++, from += step) {
      sum += source[from] * weights[place * most + tap];
    }
    target[at + value] = Math.min(255, Math.max(0, Math.floor(sum / WEIGHT_ONE)));
  }
}

/** @param {number} from @param {number} to pixels @param {number} resample @returns {Taps} */
function tapsOf(from, to, resample) {
  const places = Array.from({ length: to }, (_, place) => neighbours(from, to, place, resample));
  const most = Math.max(...places.map(({ weights }) => weights.length));
  const taps = { first: new Int32Array(to), count: new Int32Array(to), weights: new Int32Array(to * most), most };
  for (const [place, { first, weights }] of places.entries()) {
    weights.forEach((share, tap) => {
      const weight = share * WEIGHT_ONE;
      taps.weights[place * most + tap] = Math.trunc(weight < 0 ? weight - 0.5 : weight + 0.5);
    });
    [taps.first[place], taps.count[place]] = [first, weights.length];
  }
  return taps;
}

/**
 * What a place is mixed of when `from` values become `to`: the first of its neighbours, and the weight of each, 1 in all.
 *
 * @param {number} from @param {number} to @param {number} place @param {number} resample
 */
export function neighbours(from, to, place, resample) {
  const scale = from / to;
  const [reach, kernel] = KERNELS[resample] ?? [0, () => 1];
  const widened = Math.max(scale, 1);
  const support = reach * widened;
  const center = (place + 0.5) * scale;
  const first = reach ? Math.max(0, Math.trunc(center - support + 0.5)) : Math.min(from - 1, Math.floor(center));
  const count = reach ? Math.min(from, Math.trunc(center + support + 0.5)) - first : 1;
  const values = Array.from({ length: count }, (_, tap) => kernel((first + tap - center + 0.5) / widened));
  const sum = values.reduce((total, value) => total + value, 0);
  return { first, weights: values.map((value) => (sum ? value / sum : value)) };
}
