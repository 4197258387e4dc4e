// A reply for those who hear it: whole sentences, one after the other, not every token.

const PAUSE_MS = 1500; // between two of them: what follows sooner is said together

/** Writes into a polite live region; what was there before is replaced, as it was said. */
export class Speaker {
  #region;
  #said = 0; // characters of the reply that were said
  #last = 0;

  /** @param {Element} region */
  constructor(region) {
    this.#region = region;
  }

  /** Begins a reply. @param {string} text said at once */
  begin(text) {
    this.#said = 0;
    this.#region.textContent = text;
    this.#last = performance.now();
  }

  /** @param {string} text the reply so far */
  add(text) {
    if (performance.now() - this.#last < PAUSE_MS) return;
    const whole = wholeSentences(text.slice(this.#said));
    if (!whole.trim()) return;
    this.#say(whole);
  }

  /** @param {string} text the whole reply @param {string} ending */
  end(text, ending) {
    this.#say(`${text.slice(this.#said)} ${ending}`.trim());
    this.#said = 0;
  }

  /** @param {string} text */
  #say(text) {
    this.#said += text.length;
    this.#region.textContent = text.replace(/`/g, "");
    this.#last = performance.now();
  }
}

/** What is certain to be sentences: up to the last end of one, or of a line. @param {string} text */
export function wholeSentences(text) {
  const ends = [...text.matchAll(/[.!?。！？…]["')\]”’»]*(?=\s)|\n/gu)];
  const last = ends.at(-1);
  return last ? text.slice(0, last.index + last[0].length) : "";
}
