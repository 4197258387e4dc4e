// Which device: a wish is walked in its order, and what was passed over is told with the reason.

import { DeviceUnavailable } from "../errors.js";

/** @import { Device } from "./engine.js" */

const AUTO = "auto";
const SOFTWARE = "webgpu-software"; // never a part of "auto"

/**
 * The devices of a wish, in turn; DeviceUnavailable when all of them were refused.
 *
 * @param {Device[]} found as devices() gave them @param {string | string[]} wish a name, "auto", or a list of names
 */
export function candidates(found, wish) {
  const names = typeof wish === "string" ? [wish] : [...wish];
  if (!names.length) throw new RangeError("device is an empty list; expected a name, 'auto', or names.");
  const automatic = found.filter(({ name }) => name !== SOFTWARE).map(({ name }) => name);
  const wished = [...new Set(names.flatMap((name) => (name === AUTO ? automatic : [name])))];
  return wished.map((name) => {
    const device = found.find((one) => one.name === name);
    if (device) return device;
    const known = found.map((one) => `'${one.name}'`).join(", ");
    const isSoftware = name === SOFTWARE;
    return /** @type {Device} */ ({
      name, backend: "", description: "", available: false, memory: 0,
      reason: isSoftware ? "the adapter is no software, or there is none" : "there is no such device in a browser",
      remedy: isSoftware ? "use 'webgpu'" : `use one of ${known} or 'auto'`,
    });
  });
}

/** @param {Device[]} refused each with its reason @returns {DeviceUnavailable} */
export function failure(refused) {
  const tried = refused.map(({ name, reason, remedy }) => /** @type {[string, string, string]} */ ([name, reason, remedy]));
  const told = refused.map(({ name, reason, remedy }) => `'${name}': ${reason}${remedy ? ` (${remedy})` : ""}`);
  return new DeviceUnavailable(`no device can run this model. ${told.join("; ")}.`, { tried });
}
