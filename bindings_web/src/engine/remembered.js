// Small findings about this browser, each a JSON file in the site's own file system; nothing is lost without them.

/** What was remembered under a name; null when there is nothing, or nothing can be stored here. @param {string} name @returns {Promise<any>} */
export async function recall(name) {
  try {
    const folder = await navigator.storage.getDirectory();
    return JSON.parse(await (await (await folder.getFileHandle(name)).getFile()).text());
  } catch {
    return null;
  }
}

/** @param {string} name @param {unknown} found is written as JSON, in the place of what was there */
export async function remember(name, found) {
  try {
    const folder = await navigator.storage.getDirectory();
    const writable = await (await folder.getFileHandle(name, { create: true })).createWritable();
    await writable.write(JSON.stringify(found));
    await writable.close(); // the file changes now, as a whole
  } catch {
    // a private window, or a browser without it: it is found again
  }
}
