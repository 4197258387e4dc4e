// Whether a page reads the images of a model, by its description.

const NO_KIND = undefined; // of tiles: the first kind of encoders, which manifests do not name
const KINDS = [NO_KIND, "DynamicVision"];
const ON_A_DESKTOP = "use the device 'cpu' of a desktop";

/**
 * Why it does not, and what helps; null where it does. A model without a vision encoder is not asked for.
 *
 * @param {any} architecture of the manifest
 * @returns {[reason: string, remedy: string] | null}
 */
export function imagesRefusal({ vision }) {
  if (!KINDS.includes(vision.kind)) {
    return ["browsers do not run its vision encoder", ON_A_DESKTOP];
  }
  return null;
}
