// An id that no other has.

/** A UUID; where the page came over plain http, which has no randomUUID, numbers. */
export const newId = () => crypto.randomUUID?.() ?? crypto.getRandomValues(new Uint32Array(4)).join("-");
