// The box that says what went wrong, with a button that does it again.

import { any, button } from "./elements.js";
import { troubleOf } from "./shared/troubles.js";

/** @type {() => void} */
let again = () => {};

/**
 * @param {unknown} error
 * @param {() => void} retry what "Try again" does
 */
export function showTrouble(error, retry) {
  console.warn(error);
  const { heading, advice, details } = troubleOf(error);
  any("trouble-heading").textContent = heading;
  any("trouble-advice").textContent = advice;
  any("trouble-details").textContent = details;
  again = retry;
  any("trouble").hidden = false;
  any("trouble").scrollIntoView({ block: "nearest" });
}

export function hideTrouble() {
  any("trouble").hidden = true;
}

button("retry").addEventListener("click", () => {
  hideTrouble();
  again();
});
button("dismiss").addEventListener("click", hideTrouble);
