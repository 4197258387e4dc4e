// A model's text as elements: paragraphs, inline code, code blocks. Only textContent is set: nothing in it is ever HTML.

/** @typedef {{kind: "text" | "code", source: string, language: string}} Block */

/**
 * The blocks of a text; a fence that is still open runs to the end.
 *
 * @param {string} text
 * @returns {Block[]}
 */
export function blocksOf(text) {
  /** @type {Block[]} */
  const blocks = [];
  /** @type {{mark: string, block: Block} | null} */
  let open = null;
  for (const line of text.split("\n")) {
    const fence = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)\s*$/.exec(line);
    if (open) {
      const isEnd = fence && !fence[2] && fence[1][0] === open.mark[0] && fence[1].length >= open.mark.length;
      if (isEnd) open = null;
      else open.block.source += open.block.source ? `\n${line}` : line || "\n";
      continue;
    }
    if (fence) {
      open = { mark: fence[1], block: { kind: "code", source: "", language: fence[2] } };
      blocks.push(open.block);
      continue;
    }
    const last = blocks.at(-1);
    if (line.trim() === "") blocks.push({ kind: "text", source: "", language: "" });
    else if (last?.kind === "text") last.source += last.source ? `\n${line}` : line;
    else blocks.push({ kind: "text", source: line, language: "" });
  }
  return blocks.filter(({ kind, source }) => kind === "code" || source);
}

/** Shows a text that grows: only the blocks that changed are made again, so that a button keeps the focus. */
export class ReplyView {
  #place;
  /** @type {Block[]} */
  #shown = [];

  /** @param {Element} place */
  constructor(place) {
    this.#place = place;
  }

  /** @param {string} text */
  show(text) {
    const blocks = blocksOf(text);
    blocks.forEach((block, at) => {
      const before = this.#shown[at];
      const old = this.#place.children[at];
      if (before?.kind === block.kind && before.source === block.source && before.language === block.language) return;
      if (before?.kind === "code" && block.kind === "code" && old) old.replaceChildren(...codeParts(block, old));
      else if (old) old.replaceWith(elementOf(block));
      else this.#place.append(elementOf(block));
    });
    while (this.#place.children.length > blocks.length) this.#place.lastElementChild?.remove();
    this.#shown = blocks;
  }
}

/** @param {Block} block */
function elementOf(block) {
  if (block.kind === "text") return paragraph(block.source);
  const element = document.createElement("div");
  element.className = "block";
  element.replaceChildren(...codeParts(block, element));
  return element;
}

/** Text with what stands between backticks as code. @param {string} source */
function paragraph(source) {
  const element = document.createElement("p");
  for (const part of source.split(/(`+[^`\n]+`+)/)) {
    const code = /^(`+)([^`\n]+)\1$/.exec(part);
    if (!code) {
      element.append(part);
      continue;
    }
    const inline = document.createElement("code");
    inline.textContent = code[2].trim();
    element.append(inline);
  }
  return element;
}

/** The bar, which stays when it is there, and the code. @param {Block} block @param {Element} element @returns {Element[]} */
function codeParts(block, element) {
  const code = document.createElement("code");
  code.textContent = block.source;
  const body = document.createElement("pre");
  body.tabIndex = 0; // so that keys can scroll it
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", block.language ? `Code, ${block.language}` : "Code");
  body.append(code);
  const head = element.querySelector(".block-bar") ?? bar();
  head.children[0].textContent = block.language || "code"; // which may come after the fence
  return [head, body];
}

function bar() {
  const name = document.createElement("span");
  name.className = "quiet";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.setAttribute("aria-label", "Copy the code");
  copy.addEventListener("click", () => copied(copy));
  const element = document.createElement("div");
  element.className = "block-bar";
  element.append(name, copy);
  return element;
}

/** @param {HTMLButtonElement} copy */
async function copied(copy) {
  const code = copy.closest(".block")?.querySelector("code")?.textContent ?? "";
  const isCopied = await navigator.clipboard?.writeText(code).then(() => true, () => false); // none over plain http
  copy.textContent = isCopied ? "Copied" : "Not allowed";
  copy.setAttribute("aria-label", isCopied ? "The code was copied" : "The browser did not allow to copy the code");
  setTimeout(() => {
    copy.textContent = "Copy";
    copy.setAttribute("aria-label", "Copy the code");
  }, 2000);
}
