// The notebook's page: cells that can be edited, run in order in a worker, their output below them.

import { DEMO } from "./shared/places.js";

const CELLS = [
  `import embedllm

llm = await embedllm.aload("${DEMO}")
print(llm.name, "on", llm.device.name)`,
  `messages = [{"role": "user", "content": "show the size of each folder"}]
async for chunk in llm.astream(messages):
    print(chunk.text, end="")`,
  `talk = llm.conversation()
first = await talk.asay("find all log files")
second = await talk.asay("only those larger than 10 MB")
print(first.text)
print(second.text)
second.statistics.cached_tokens  # of the second prompt, held from the first turn`,
  `[(device.name, device.available, device.reason) for device in await embedllm.adevices()]`,
];

const cells = /** @type {HTMLElement} */ (document.getElementById("cells"));
const state = /** @type {HTMLElement} */ (document.getElementById("state"));
const [add, stop, restart] = ["add", "stop", "restart"].map(
  (id) => /** @type {HTMLButtonElement} */ (document.getElementById(id)),
);
const template = /** @type {HTMLTemplateElement} */ (document.getElementById("cell"));

/** @type {Worker} */
let worker;
let ran = 0;
/** Cells that wait for their turn, the one that runs first. @type {{code: string, output: HTMLElement}[]} */
let waiting = [];

function start() {
  worker?.terminate();
  waiting = [];
  state.textContent = "Starting Python.";
  worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  worker.addEventListener("message", ({ data }) => take(data));
  worker.addEventListener("error", ({ message }) => {
    waiting = [];
    show();
    state.textContent = `Python cannot run here: ${message || "its worker could not be loaded"}. Check the network, then restart it.`;
  });
}

/** @param {{ready?: true, text?: string, done?: true, failed?: string}} said of the worker */
function take({ ready, text, done, failed }) {
  const output = waiting[0]?.output;
  if (ready) state.textContent = "Python is ready.";
  if (text !== undefined && output) output.textContent += text;
  if (failed !== undefined && !output) state.textContent = failed;
  if (failed !== undefined && output) {
    output.textContent += failed;
    output.classList.add("failed");
  }
  if (!done) return;
  waiting.shift();
  if (output && !output.textContent) output.textContent = "(no output)";
  next();
}

function next() {
  if (waiting.length) {
    worker.postMessage({ code: waiting[0].code });
  } else if (ran) {
    state.textContent = "Done.";
  }
  show();
}

function show() {
  stop.disabled = waiting.length === 0;
  if (waiting.length) state.textContent = "Running.";
}

/** @param {string} code */
function addCell(code) {
  const cell = /** @type {HTMLElement} */ (template.content.cloneNode(true)).firstElementChild;
  const [heading, editor, run, output] = /** @type {HTMLCollectionOf<HTMLElement>} */ (/** @type {Element} */ (cell).children);
  const field = /** @type {HTMLTextAreaElement} */ (editor);
  const number = cells.children.length + 1;
  heading.textContent = `Cell ${number}`;
  field.value = code;
  field.rows = Math.max(2, code.split("\n").length + 1);
  field.setAttribute("aria-label", `Code of cell ${number}`);
  run.setAttribute("aria-label", `Run cell ${number}`);
  output.setAttribute("aria-label", `Output of cell ${number}`);
  const start = () => {
    if (waiting.some((one) => one.output === output)) return; // it runs or waits
    ran++;
    output.hidden = false;
    output.textContent = "";
    output.classList.remove("failed");
    waiting.push({ code: field.value, output });
    if (waiting.length === 1) next();
  };
  run.addEventListener("click", start);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    start();
    const following = cells.children[number] ?? addCell("");
    following.querySelector("textarea")?.focus();
  });
  cells.append(/** @type {Element} */ (cell));
  return /** @type {Element} */ (cell);
}

for (const code of CELLS) addCell(code);
add.addEventListener("click", () => addCell("").querySelector("textarea")?.focus());
stop.addEventListener("click", () => {
  const [cell] = waiting;
  waiting.length = Math.min(waiting.length, 1); // what waits is not run
  worker.postMessage({ stop: true });
  setTimeout(() => {
    if (waiting[0] === cell) state.textContent = "The cell does not await anything: only “Restart Python” ends it.";
  }, 2000);
});
restart.addEventListener("click", () => {
  start();
  show();
});
start();
