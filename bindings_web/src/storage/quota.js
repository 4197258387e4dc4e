// How much a site may store.

/**
 * Bytes that this site stores and may store; null where the browser does not tell.
 * @returns {Promise<{usage: number | null, quota: number | null}>}
 */
export async function spaceOfSite() {
  const { usage, quota } = (await navigator.storage?.estimate?.().catch(() => undefined)) ?? {};
  return { usage: usage ?? null, quota: quota ?? null };
}
