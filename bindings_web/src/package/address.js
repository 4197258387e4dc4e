// Addresses of folders and of files in them.

import { PackageError } from "../errors.js";
import { MANIFEST } from "./manifest.js";

/**
 * The address of a folder, as models are stored by it: whole, with a slash at its end and without a fragment.
 * @param {string | URL} url
 * @returns {string}
 */
export function folderOf(url) {
  // a worker made of a blob has no address of its own to start from
  const here = location.protocol === "blob:" ? location.origin : location.href;
  let folder;
  try {
    folder = new URL(url, here);
  } catch {
    throw new PackageError(`'${url}' is no address of a folder; expected one such as https://example.org/my-model/`);
  }
  folder.hash = "";
  if (folder.pathname.endsWith(`/${MANIFEST}`)) folder.pathname = folder.pathname.slice(0, -MANIFEST.length);
  if (!folder.pathname.endsWith("/")) folder.pathname += "/";
  return folder.href;
}

/**
 * The address of a file in a folder; the folder's query is kept.
 * @param {string} folder
 * @param {string} name
 */
export function addressIn(folder, name) {
  const address = new URL(folder);
  address.pathname += name.split("/").map(encodeURIComponent).join("/");
  return address.href;
}
