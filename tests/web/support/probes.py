"""What the probe of a GPU found, carried from page to page: software compiles for many seconds to find it again.

Each test has an origin of its own, for which nothing is stored. So the first page of a process probes, and what it
stored is there on those that come later.
"""

from __future__ import annotations

from tests.web.support.page import Page

READ = """async () => {
  try {
    const folder = await navigator.storage.getDirectory();
    return await (await (await folder.getFileHandle("embedllm-probes.json")).getFile()).text();
  } catch {
    return null;
  }
}"""
WRITE = """async (text) => {
  const folder = await navigator.storage.getDirectory();
  const writable = await (await folder.getFileHandle("embedllm-probes.json", { create: true })).createWritable();
  await writable.write(text);
  await writable.close();
}"""
_stored: list[str] = []


def remember_probes(page: Page) -> None:
    """Keeps what the page has stored, for pages to come."""
    if not _stored and (text := page.evaluate(READ)):
        _stored.append(text)


def recall_probes(page: Page) -> Page:
    """The page, with what an earlier one found."""
    if _stored:
        page.evaluate(WRITE, _stored[0])
    return page
