// What the user has set: kept in this browser, and shown in a dialog.

import { any, button, element, input } from "./elements.js";

/**
 * @typedef {{temperature: number, max_tokens: number, device: string, engine: "javascript" | "python", system: string,
 *   url: string, isLoaded: boolean, keptChat: string}} Settings
 * isLoaded: the model at `url` was used the last time, and is loaded again by itself. keptChat: see kept_cache.js
 */

const KEY = "embedllm-chat";
/** @type {Settings} */
const DEFAULTS = {
  temperature: 0,
  max_tokens: 256,
  device: "auto",
  engine: "javascript",
  system: "",
  url: "",
  isLoaded: false,
  keptChat: "",
};

/** Those that could not be kept. @type {Partial<Settings>} */
const unkept = {};

/** What is kept; what is missing, damaged or of another version is the default. @returns {Settings} */
export function settings() {
  /** @type {Partial<Record<keyof Settings, unknown>>} */
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(KEY) ?? "{}") ?? {};
  } catch {
    // damaged, or nothing may be stored here
  }
  const isGood = (/** @type {keyof Settings} */ name) => typeof kept[name] === typeof DEFAULTS[name];
  Object.assign(kept, unkept);
  const good = /** @type {(keyof Settings)[]} */ (Object.keys(DEFAULTS)).filter(isGood).map((name) => [name, kept[name]]);
  const found = { ...DEFAULTS, ...Object.fromEntries(good) };
  return { ...found, engine: found.engine === "python" ? "python" : "javascript" };
}

/** @param {Partial<Settings>} changed */
export function change(changed) {
  try {
    localStorage.setItem(KEY, JSON.stringify({ ...settings(), ...changed }));
  } catch {
    Object.assign(unkept, changed); // nothing may be stored here: they last as long as the page
  }
}

/** Fills the dialog and keeps what is changed in it; onDone is told what was there before. @param {(before: Settings) => void} onDone */
export function bindDialog(onDone) {
  const dialog = element("settings", HTMLDialogElement);
  const temperature = input("temperature");
  const limit = input("max_tokens");
  const device = element("device", HTMLSelectElement);
  const engine = element("engine", HTMLSelectElement);
  const system = element("system", HTMLTextAreaElement);
  let before = settings();
  const showTemperature = () => {
    any("temperature-shown").textContent = temperature.value === "0" ? "0 (always the same reply)" : temperature.value;
  };
  button("open-settings").addEventListener("click", () => {
    before = settings();
    temperature.value = String(before.temperature);
    limit.value = String(before.max_tokens);
    if (![...device.options].some(({ value }) => value === before.device)) device.add(new Option(before.device));
    device.value = before.device;
    engine.value = before.engine;
    system.value = before.system;
    showTemperature();
    dialog.showModal();
  });
  temperature.addEventListener("input", showTemperature);
  dialog.addEventListener("close", () => {
    const isLimit = limit.validity.valid; // Escape closes whatever is written there
    change({
      temperature: Number(temperature.value),
      max_tokens: isLimit ? Number(limit.value) : before.max_tokens,
      device: device.value,
      engine: engine.value === "python" ? "python" : "javascript",
      system: system.value,
    });
    onDone(before);
  });
}
