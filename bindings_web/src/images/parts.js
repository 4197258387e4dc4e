// Parts of messages that are images: which are. Loaded for every prompt, so without the rest.

const KINDS = ["image", "image_url", "input_image"];
const ENCODERS = [undefined, "DynamicVision"]; // undefined: of tiles, the first kind, which manifests do not name

/** Whether a part of a content is an image, as OpenAI or transformers have it. @param {any} part */
export const isImagePart = (part) => KINDS.includes(part?.type);

/** Whether a part of a message is an image. @param {unknown} prompt messages, or what has no images */
export const hasImages = (prompt) =>
  Array.isArray(prompt) && prompt.some((message) => Array.isArray(message?.content) && message.content.some(isImagePart));

/** Whether a page runs a vision encoder. @param {any} vision of the manifest's architecture, if it has one */
export const isEncodedHere = (vision) => Boolean(vision) && ENCODERS.includes(vision.kind);

/** Whether a model's images are read here. @param {import("../worker/load_model.js").Loaded} loaded */
export const takesImages = ({ manifest }) => isEncodedHere(/** @type {any} */ (manifest.architecture)?.vision);

/**
 * A message with other parts in place of its images.
 *
 * @param {any} message @param {(part: any) => any} replace
 * @returns {Promise<any>}
 */
export async function withImages(message, replace) {
  if (!hasImages([message])) return message;
  const parts = message.content.map((/** @type {any} */ part) => (isImagePart(part) ? replace(part) : part));
  return { ...message, content: await Promise.all(parts) };
}
