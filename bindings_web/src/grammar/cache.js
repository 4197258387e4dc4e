// The grammars that a model's replies were held to, compiled once for each; loaded when the first is asked for.

/**
 * @import { Grammar, Matcher } from "./grammar.js"
 * @typedef {(stopTokens: Iterable<number>) => Matcher} MakeMatcher
 */

const KEPT = 8;

export class Grammars {
  #texts;
  /** @type {Map<string, Grammar>} */
  #compiled = new Map();

  /** @param {ReadonlyMap<string, string>} texts of the model's folder */
  constructor(texts) {
    this.#texts = texts;
  }

  /**
   * What makes the matcher of a reply, when the tokens are known that may end it; null where any text may be said.
   *
   * @param {Record<string, unknown> | null} format of OpenAI's shape: response_format.js
   * @returns {Promise<MakeMatcher | null>}
   */
  async maker(format) {
    if (format === null) return null;
    const [{ Grammar }, { grammarSource }] = await Promise.all([import("./grammar.js"), import("./response_format.js")]);
    const source = grammarSource(format);
    return source && ((stopTokens) => {
      const stops = [...stopTokens];
      const key = JSON.stringify([source, stops]);
      const known = this.#compiled.get(key) ?? Grammar.compile(source, { texts: this.#texts, stopTokens: stops });
      this.#compiled.delete(key); // and back in, so that the oldest is the one not used for longest
      this.#compiled.set(key, known);
      if (this.#compiled.size > KEPT) this.#compiled.delete(/** @type {string} */ (this.#compiled.keys().next().value));
      return known.matcher();
    });
  }
}
