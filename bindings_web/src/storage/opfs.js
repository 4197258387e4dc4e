// Where stored files lie: this site's own folder (the origin private file system), or memory where there is none.
//
//   embedllm/files/SHA256        whole, its hash was checked
//   embedllm/files/SHA256.part   the beginning of one
//   embedllm/models/KEY.json     what is known of a model (store.js)
//   embedllm/conversations/KEY   a saved one (saved_conversations.js)
//   embedllm/python/snapshot     Pyodide's memory (worker/python_snapshot.js)

/**
 * The beginning of a file, being written. Only one can be open for a name.
 * @typedef {object} Growing
 * @property {() => number} size
 * @property {(at: number, length: number) => Uint8Array | Promise<Uint8Array>} read
 * @property {(chunk: Uint8Array) => void} append  throws a DOMException named QuotaExceededError
 * @property {(size: number) => void} cut  truncates to its first `size` bytes
 * @property {() => Promise<void>} finish  makes it the file of its name
 * @property {() => void} close
 */

/**
 * @typedef {object} Place
 * @property {boolean} isDisk
 * @property {(name: string) => Promise<File | Blob | null>} file
 * @property {(name: string) => Promise<Growing>} part
 * @property {(name: string) => Promise<void>} remove  the file and its part; one that is being written stays
 * @property {() => Promise<Map<string, number>>} sizes  bytes by name, parts as NAME.part
 * @property {() => Promise<[string, string][]>} records  key and text
 * @property {(key: string) => Promise<string | null>} record
 * @property {(key: string, text: string) => Promise<void>} write
 * @property {(key: string) => Promise<void>} erase
 */

/**
 * A file that is open: of FileSystemSyncAccessHandle what is used, as TypeScript has that name for workers only.
 * @typedef {object} OpenFile
 * @property {(into: Uint8Array<ArrayBuffer>, options: {at: number}) => number} read
 * @property {() => void} close
 */

/** How the stored files that were given out can be opened. @type {WeakMap<Blob, FileSystemFileHandle>} */
const handles = new WeakMap();

/**
 * A stored file, opened for reading: that is 10 to 30 times as fast as by FileReader. Null where it cannot be had.
 *
 * Until it is closed the file cannot be removed, and where a browser has no such mode (Firefox, Safari) nobody else can
 * open it so.
 * @param {Blob} file  as a place gave it
 * @returns {Promise<OpenFile | null>}
 */
export async function openForReading(file) {
  const handle = /** @type {any} */ (handles.get(file)); // the mode is not in TypeScript's declarations yet
  return handle?.createSyncAccessHandle({ mode: "read-only" }).catch(() => null) ?? null;
}

/**
 * The place for this page's files, and why it is not the disk if it is not.
 * @param {"files" | "conversations" | "python"} [kept]
 * @returns {Promise<{place: Place, reason: string}>}
 */
export async function openPlace(kept = "files") {
  try {
    for (const name of /** @type {const} */ ([kept, "models"])) await folder(name);
    return { place: disk(kept), reason: "" };
  } catch (error) {
    return { place: memory(), reason: navigator.storage ? String(error) : "the page came over plain http" };
  }
}

/**
 * One of the folders; made again when the browser removed what this site stored.
 * @param {"files" | "conversations" | "python" | "models"} name
 */
async function folder(name) {
  let found = await navigator.storage.getDirectory();
  for (const each of ["embedllm", name]) {
    found = await found.getDirectoryHandle(each).catch((error) => {
      if (error.name !== "NotFoundError") throw error;
      return found.getDirectoryHandle(each, { create: true }); // refused where the quota is used up, so not each time
    });
  }
  return found;
}

/** @param {"files" | "conversations" | "python"} kept @returns {Place} */
function disk(kept) {
  return {
    isDisk: true,
    file: async (name) => fileOf(await folder(kept), name),
    async part(name) {
      const handle = await (await folder(kept)).getFileHandle(`${name}.part`, { create: true });
      return diskPart(handle, await access(handle), name);
    },
    async remove(name) {
      const files = await folder(kept);
      for (const each of [name, `${name}.part`]) await removeFrom(files, each);
    },
    async sizes() {
      const sizes = new Map();
      const files = await folder(kept);
      for await (const name of files.keys()) sizes.set(name, (await fileOf(files, name))?.size ?? 0);
      return sizes;
    },
    async records() {
      /** @type {[string, string][]} */
      const records = [];
      const models = await folder("models");
      for await (const name of models.keys()) {
        const text = name.endsWith(".json") ? await (await fileOf(models, name))?.text() : undefined;
        if (text !== undefined) records.push([name.slice(0, -5), text]);
      }
      return records;
    },
    record: async (key) => (await (await fileOf(await folder("models"), `${key}.json`))?.text()) ?? null,
    async write(key, text) {
      const handle = await (await folder("models")).getFileHandle(`${key}.part`, { create: true });
      const part = diskPart(handle, await access(handle), `${key}.json`);
      try {
        part.cut(0);
        part.append(new TextEncoder().encode(text));
        await part.finish();
      } finally {
        part.close();
      }
    },
    erase: async (key) => removeFrom(await folder("models"), `${key}.json`),
  };
}

/**
 * @param {FileSystemFileHandle} handle
 * @param {FileSystemSyncAccessHandle} access
 * @param {string} name
 * @returns {Growing}
 */
function diskPart(handle, access, name) {
  let isOpen = true;
  const close = () => {
    if (!isOpen) return;
    isOpen = false;
    try {
      access.flush();
    } finally {
      access.close();
    }
  };
  return {
    size: () => access.getSize(),
    read(at, length) {
      const block = new Uint8Array(length);
      return block.subarray(0, access.read(block, { at }));
    },
    append(chunk) {
      const at = access.getSize();
      if (access.write(chunk, { at }) === chunk.length) return;
      access.truncate(at); // private windows of Chromium 156 give 2^32 - 8, their code of a full disk, for an error
      throw new DOMException("the disk is full", "QuotaExceededError");
    },
    cut: (size) => access.truncate(size),
    async finish() {
      close(); // flushed before it has its name: a file of that name is whole
      await /** @type {any} */ (handle).move(name); // not in TypeScript's declarations yet
    },
    close,
  };
}

/**
 * The way to write a file. The one of a tab that was just closed may be open a moment longer than its lock.
 * @param {FileSystemFileHandle} handle
 */
async function access(handle) {
  for (let tries = 0; ; tries++) {
    try {
      return await handle.createSyncAccessHandle();
    } catch (error) {
      if (tries === 40 || /** @type {Error} */ (error).name !== "NoModificationAllowedError") throw error;
      await new Promise((done) => setTimeout(done, 50));
    }
  }
}

/**
 * @param {FileSystemDirectoryHandle} folder
 * @param {string} name
 * @returns {Promise<File | null>}
 */
async function fileOf(folder, name) {
  try {
    const handle = await folder.getFileHandle(name);
    const file = await handle.getFile();
    handles.set(file, handle);
    return file;
  } catch (error) {
    if (/** @type {Error} */ (error).name === "NotFoundError") return null;
    throw error;
  }
}

/**
 * @param {FileSystemDirectoryHandle} folder
 * @param {string} name
 */
async function removeFrom(folder, name) {
  try {
    await folder.removeEntry(name);
  } catch (error) {
    if (!["NotFoundError", "NoModificationAllowedError"].includes(/** @type {Error} */ (error).name)) throw error;
  }
}

/** @returns {Place} */
function memory() {
  /** @type {Map<string, Blob>} */
  const files = new Map();
  /** @type {Map<string, string>} */
  const models = new Map();
  return {
    isDisk: false,
    file: async (name) => files.get(name) ?? null,
    part: async (name) => memoryPart(files, name),
    async remove(name) {
      files.delete(name);
      files.delete(`${name}.part`);
    },
    sizes: async () => new Map([...files].map(([name, blob]) => [name, blob.size])),
    records: async () => [...models],
    record: async (key) => models.get(key) ?? null,
    write: async (key, text) => void models.set(key, text),
    erase: async (key) => void models.delete(key),
  };
}

/**
 * @param {Map<string, Blob>} files
 * @param {string} name
 * @returns {Growing}
 */
function memoryPart(files, name) {
  let whole = files.get(`${name}.part`) ?? new Blob();
  /** @type {Uint8Array<ArrayBuffer>[]} */
  let chunks = [];
  let pending = 0;
  let isOpen = true;
  const settle = () => {
    if (!isOpen) return;
    whole = new Blob([whole, ...chunks]); // a browser keeps large ones outside of the page's memory
    chunks = [];
    pending = 0;
    files.set(`${name}.part`, whole);
  };
  return {
    size: () => whole.size + pending,
    read: async (at, length) => new Uint8Array(await whole.slice(at, at + length).arrayBuffer()),
    append(chunk) {
      chunks.push(chunk.slice());
      pending += chunk.length;
      if (pending > 1 << 24) settle();
    },
    cut(size) {
      settle();
      whole = whole.slice(0, size);
      settle();
    },
    async finish() {
      settle();
      files.set(name, whole);
      files.delete(`${name}.part`);
      isOpen = false;
    },
    close: settle,
  };
}
