// What tests/golden/web_rule.json refers to and does not hold: the rows and the toy tokenizers, as tools/*.py make them.

/** The special token of `Bytes` in tests/support/fakes.py. */
export const END = 256;
export const VOCABULARY = 257;

/**
 * Logits by the formula of tools/make_web_vectors.py.
 *
 * @param {string} shape
 * @param {number} size
 * @param {number} seed
 */
export function makeRow(shape, size, seed) {
  const base = Math.imul(seed, 0x9e3779b9);
  const row = new Float32Array(size);
  for (let token = 0; token < size; token++) {
    const place = base + 4 * token;
    row[token] = shaped(shape, half(place), half(place + 1), half(place + 2), half(place + 3));
  }
  return row;
}

/** @param {string} shape @param {number} first @param {number} second @param {number} third @param {number} fourth */
function shaped(shape, first, second, third, fourth) {
  const normal = (first + second + third + fourth - 131072) / 16384;
  switch (shape) {
    case "peaked":
      return first % 97 === 0 ? normal + 8 : normal;
    case "ties":
      return Math.floor(first / 8192) - 4;
    case "masked":
      return first % 16 === 0 ? normal : -Infinity;
    case "flat":
      return normal / 16;
    case "constant":
      return -1.5;
    case "normal":
      return normal;
    default:
      throw new RangeError(`no shape '${shape}'`);
  }
}

/** @param {number} word */
function half(word) {
  word = Math.imul(word ^ (word >>> 16), 0x7feb352d);
  word = Math.imul(word ^ (word >>> 15), 0x846ca68b);
  return (word ^ (word >>> 16)) >>> 16;
}

/** @typedef {import("../../../bindings_web/src/sampling/text_stream.js").Codec} Codec */

/** @type {Record<string, Codec>} */
export const CODECS = { bytes: bytes(false), "byte tokens": bytes(true), pieces: pieces() };

/** @param {boolean} asByteTokens @returns {Codec} */
function bytes(asByteTokens) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  return {
    specialTokens: new Set([END]),
    decode(tokens, { special }) {
      const end = special ? [...new TextEncoder().encode("<end>")] : [];
      return decoder.decode(Uint8Array.from(tokens.flatMap((token) => (token === END ? end : [token]))));
    },
    tokenText(token) {
      if (token < 0 || token >= END) return token === END ? "<end>" : null;
      return asByteTokens ? `<0x${token.toString(16).toUpperCase().padStart(2, "0")}>` : `byte ${token}`;
    },
  };
}

/** @returns {Codec} */
function pieces() {
  const spellings = ["<s>", "Hel", "lo", " ", "wörld", "\u65e5"];
  spellings.push("<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xE6>", "<0x0A>", "!");
  const specialTokens = new Set([0]);
  return {
    specialTokens,
    decode(tokens, { special }) {
      const known = tokens.filter((token) => token < spellings.length && (special || !specialTokens.has(token)));
      const text = known.map((token) => spellings[token]).join("");
      return text.replace(/(?:<0x..>)+/g, runText);
    },
    tokenText: (token) => spellings[token] ?? null,
  };
}

/** @param {string} run */
function runText(run) {
  const raw = Uint8Array.from(run.match(/[0-9A-F]{2}/g) ?? [], (digits) => parseInt(digits, 16));
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
  } catch {
    return "\ufffd".repeat(raw.length);
  }
}
