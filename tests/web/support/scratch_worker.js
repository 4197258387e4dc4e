// A worker that runs what a test hands in: the body of an async function of `argument`, with `await import(...)`.
// Messages without code are for what that imported, such as /src/worker.js.
const AsyncFunction = Object.getPrototypeOf(async function () {}).constructor;

self.addEventListener("message", async (event) => {
  if (!("code" in event.data)) return;
  event.stopImmediatePropagation();
  const {id, code, argument} = event.data;
  try {
    const value = await new AsyncFunction("argument", code)(argument);
    self.postMessage({id, value});
  } catch (error) {
    const isError = error instanceof Error || error instanceof DOMException;
    const {name, message, stack} = isError ? error : new Error(String(error));
    self.postMessage({id, error: {name, message, stack, fields: fields(error)}});
  }
});

/** What an error holds beside its text, as far as it can be sent. */
function fields(error) {
  try {
    return JSON.parse(JSON.stringify({...error}));
  } catch {
    return {};
  }
}
