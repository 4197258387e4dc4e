"""Damage to the files that a page has stored."""

from __future__ import annotations

from tests.web.support.page import Page

DAMAGE = """
    const home = await (await navigator.storage.getDirectory()).getDirectoryHandle("embedllm");
    const handle = await (await home.getDirectoryHandle("files")).getFileHandle(argument.name);
    const damaged = new Uint8Array(await (await handle.getFile()).arrayBuffer());
    damaged[argument.at] ^= 1;
    if (argument.dated) {
        const writable = await handle.createWritable();
        await writable.write(damaged);
        await writable.close();
    } else { // a private window keeps the date: as a disk that fails does
        const access = await handle.createSyncAccessHandle();
        access.write(damaged);
        access.close();
    }
"""


def damage(page: Page, name: str, at: int = 1, *, dated: bool = False) -> None:
    """Changes one byte of a stored file; its length stays, and its date where `dated` is not set."""
    page.in_worker(DAMAGE, {"name": name, "at": at, "dated": dated})
