// What went wrong, in words for whoever sits in front of the page, and what can be done about it.

/** @typedef {{heading: string, advice: string, details: string}} Trouble details: what the library says, word by word */

/**
 * @param {unknown} error
 * @returns {Trouble}
 */
export function troubleOf(error) {
  const { name, message } = error instanceof Error ? error : new Error(String(error));
  const [heading, advice] = wordsFor(name, message, /** @type {any} */ (error));
  return { heading, advice, details: message };
}

/**
 * @param {string} name @param {string} message @param {{lost?: boolean, limit?: number}} error
 * @returns {[heading: string, advice: string]}
 */
function wordsFor(name, message, error) {
  if (name === "ContextFull") {
    return [
      "This chat is longer than the model can read",
      `The model reads ${error.limit} tokens at once. Start a new chat, or write less.`,
    ];
  }
  if (name === "DeviceUnavailable" && globalThis.isSecureContext === false) {
    return ["This address is not safe enough for the browser", "Open the page by https, or on localhost."];
  }
  if (name === "DeviceUnavailable") {
    return ["Nothing here can run this model", "Choose the device “auto” in the settings, or a smaller model."];
  }
  if (name === "DeviceError") {
    if (!error.lost) return ["The device failed", "Try again; if it fails again, choose the device “wasm” in the settings."];
    return ["The model was stopped by the browser", "Try again: it is loaded again from what is stored here."];
  }
  if (message.startsWith("no room")) {
    return ["There is not enough room for this model", "Remove a stored model in the settings, or free space on the disk."];
  }
  if (name === "PackageError" && message.startsWith("cannot read")) {
    return navigator.onLine === false
      ? ["You are offline", "This model is not stored here yet. Load it again when the network is back."]
      : ["There is no model at this address", "Check the address. Its server must allow this page to read from it."];
  }
  if (name === "PackageError" && message.startsWith("cannot download")) {
    return ["The download broke off", "Try again when the network is back. It goes on from where it stopped."];
  }
  if (message.includes("takes no images") || message.includes("without images here")) {
    return ["This model takes no images here", "Remove the images, or load a model that sees. A chat that has images needs one."];
  }
  if (message.includes("the image")) return ["An image cannot be read", "Remove it, or send a smaller one, as a JPEG or PNG file."];
  if (name === "PackageError") return ["This model cannot be used", "Its folder has to be exported or uploaded again."];
  if (name === "TemplateError") return ["This model cannot chat", "It has no chat template. Choose one that was made for chats."];
  if (message.includes("cannot be loaded from") || message.includes("cannot be read")) {
    return ["A part of this page could not be loaded", "Check the network, then try again."];
  }
  return ["Something went wrong", "Try again. If it happens again, the details say more."];
}
