// A text of any length to a few sentences: in pieces that the model can read, then a summary of their summaries.

const TOKENS = 160; // of one summary
const LETTERS = 3; // per token, so that most pieces fit at once; those that do not are parted
const ROUNDS = 6; // summaries of summaries; each makes the text several times shorter

/**
 * @typedef {{role: string, content: string}} Message
 * @typedef {{context: number, chat: (messages: Message[], options: object) =>
 *   AsyncIterable<{text: string, finish_reason: string | null}>}} Speaker
 * @typedef {{piece: number, pieces: number, isLast: boolean, text: string}} Step
 *   the summary of one piece so far; isLast: it is the whole text's
 */

/**
 * The summary, as it comes. When the signal aborts, it ends.
 *
 * @param {string} text
 * @param {Speaker} llm
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Step, void, void>}
 */
export async function* summarise(text, llm, signal) {
  let rest = text.trim();
  for (let round = 0; rest; round++) {
    if (round === ROUNDS) throw new RangeError("the summaries do not get shorter. Use a model that is made to summarise.");
    const waiting = piecesOf(rest, Math.max(200, (llm.context - TOKENS) * LETTERS));
    /** @type {string[]} */
    const done = [];
    while (waiting.length) {
      const pieces = done.length + waiting.length;
      const piece = /** @type {string} */ (waiting.shift());
      let summary = "";
      try {
        for await (const chunk of llm.chat(asked(piece), { max_tokens: TOKENS, temperature: 0, signal })) {
          summary += chunk.text;
          yield { piece: done.length + 1, pieces, isLast: pieces === 1, text: summary };
          if (chunk.finish_reason === "cancelled") return;
        }
        done.push(summary.trim());
      } catch (error) {
        if (/** @type {Error} */ (error).name !== "ContextFull" || piece.length < 2) throw error;
        waiting.unshift(...piecesOf(piece, Math.ceil(piece.length / 2)));
      }
    }
    if (done.length === 1) return;
    rest = done.filter(Boolean).join("\n\n");
  }
}

/** @param {string} text @returns {Message[]} */
const asked = (text) => [{ role: "user", content: `Summarise this text in at most five sentences:\n\n${text}` }];

/**
 * Pieces of at most `size` letters, parted at paragraphs, else at sentences, else at spaces, else anywhere. Together
 * they are the text.
 *
 * @param {string} text
 * @param {number} most
 * @returns {string[]}
 */
export function piecesOf(text, most) {
  const pieces = [];
  let rest = text;
  while (rest.length > most) {
    const head = rest.slice(0, most);
    const ends = [/\n\s*\n(?!\s)/g, /[.!?。！？]["')\]”’»]*\s+/gu, /\s+/g];
    const end = ends.map((pattern) => lastEnd(head, pattern)).find((place) => place > most / 2) ?? charEnd(head);
    pieces.push(rest.slice(0, end));
    rest = rest.slice(end);
  }
  return rest ? [...pieces, rest] : pieces;
}

/** @param {string} text @param {RegExp} pattern */
function lastEnd(text, pattern) {
  const last = [...text.matchAll(pattern)].at(-1);
  return last ? last.index + last[0].length : 0;
}

/** Not between the two halves of a character. @param {string} text */
const charEnd = (text) => (text.length > 1 && /[\uD800-\uDBFF]$/.test(text) ? text.length - 1 : text.length);
