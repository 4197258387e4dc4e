"""Damage to the files that a page has stored, and a browser in which pages store nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.web.support.page import Page

DAMAGE = """
    const home = await (await navigator.storage.getDirectory()).getDirectoryHandle("embedllm");
    const handle = await (await home.getDirectoryHandle("files")).getFileHandle(argument.name);
    const access = await handle.createSyncAccessHandle();
    const byte = new Uint8Array(1);
    access.read(byte, {at: argument.at});
    byte[0] ^= 1;
    access.write(byte, {at: argument.at});
    access.close();
"""


def damage(page: Page, name: str, at: int = 1) -> None:
    """Changes one byte of a stored file. Private windows keep its date, as a disk does that fails; others do not."""
    page.in_worker(DAMAGE, {"name": name, "at": at})


def store_nothing(profile: Path) -> None:
    """Sets a new profile of a whole Chromium so, as its users can: for all sites, or those in frames of others."""
    settings = {"profile": {"default_content_setting_values": {"cookies": 2}}}
    (profile / "Default").mkdir()
    (profile / "Default" / "Preferences").write_text(json.dumps(settings), encoding="utf-8")
