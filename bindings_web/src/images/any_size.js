// What images of any size take, beside what those in tiles do: loaded with the first image of a model that reads such.

export { DynamicSizeProcessor } from "./dynamic_size.js";
export { ImagePlaces } from "./places.js";
