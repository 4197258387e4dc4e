// CPython's random.Random, as far as sampling needs it: the same seed gives the same numbers as in Python.
//
// Matsumoto and Nishimura 1998, MT19937, seeded by an array as CPython 3.11 seeds it with an int (_randommodule.c).

const SIZE = 624;
const SHIFT = 397;

/** Numbers in [0, 1), of 53 random bits each. */
export class Random {
  #state = new Uint32Array(SIZE);
  #index = SIZE;
  /** @type {number[]} numbers that were looked at, and come next */
  #seen = [];

  /**
   * @param {number | bigint | null} [seed] a whole number; null = different numbers each time, from the system
   * @throws RangeError for a seed that is no whole number, or one that a number cannot hold exactly
   */
  constructor(seed = null) {
    this.#seed(seed === null ? crypto.getRandomValues(new Uint32Array(SIZE)) : words(checkedSeed(seed)));
  }

  /**
   * The next number.
   *
   * @returns {number}
   */
  random() {
    return this.#seen.shift() ?? this.#made();
  }

  /** The number that random() gives after as many others. @param {number} place */
  peek(place) {
    while (this.#seen.length <= place) this.#seen.push(this.#made());
    return this.#seen[place];
  }

  #made() {
    const high = this.#next() >>> 5;
    const low = this.#next() >>> 6;
    return (high * 2 ** 26 + low) / 2 ** 53;
  }

  /** @param {Uint32Array} key */
  #seed(key) {
    const state = this.#state;
    state[0] = 19650218;
    for (let place = 1; place < SIZE; place++) state[place] = Math.imul(1812433253, mixed(state, place)) + place;
    let place = 1;
    const advance = () => {
      if (++place < SIZE) return;
      state[0] = state[SIZE - 1];
      place = 1;
    };
    for (let step = 0; step < Math.max(SIZE, key.length); step++) {
      const word = step % key.length;
      state[place] = (state[place] ^ Math.imul(mixed(state, place), 1664525)) + key[word] + word;
      advance();
    }
    for (let step = 1; step < SIZE; step++) {
      state[place] = (state[place] ^ Math.imul(mixed(state, place), 1566083941)) - place;
      advance();
    }
    state[0] = 0x80000000;
  }

  #next() {
    if (this.#index === SIZE) this.#twist();
    let word = this.#state[this.#index++];
    word ^= word >>> 11;
    word ^= (word << 7) & 0x9d2c5680;
    word ^= (word << 15) & 0xefc60000;
    return (word ^ (word >>> 18)) >>> 0;
  }

  #twist() {
    const state = this.#state;
    for (let place = 0; place < SIZE; place++) {
      const joined = (state[place] & 0x80000000) | (state[(place + 1) % SIZE] & 0x7fffffff);
      state[place] = state[(place + SHIFT) % SIZE] ^ (joined >>> 1) ^ (joined & 1 ? 0x9908b0df : 0);
    }
    this.#index = 0;
  }
}

/**
 * A seed as a BigInt.
 *
 * @param {number | bigint} seed
 * @returns {bigint}
 */
export function checkedSeed(seed) {
  if (typeof seed !== "bigint" && !Number.isSafeInteger(seed)) {
    throw new RangeError(`seed is ${seed}; expected a whole number or null; above 2^53 - 1 it has to be a BigInt`);
  }
  return BigInt(seed);
}

/** @param {Uint32Array} state @param {number} place */
function mixed(state, place) {
  return state[place - 1] ^ (state[place - 1] >>> 30);
}

/**
 * The 32-bit words of a number without its sign, the lowest first.
 *
 * @param {bigint} seed
 */
function words(seed) {
  const found = [];
  for (let rest = seed < 0n ? -seed : seed; rest > 0n; rest >>= 32n) found.push(Number(rest & 0xffffffffn));
  return Uint32Array.from(found.length ? found : [0]);
}
