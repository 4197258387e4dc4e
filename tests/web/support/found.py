"""What a browser test needs of this machine: Node.js, the npm packages, Chromium."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_HEADLESS_SHELLS = ("chromium-headless-shell", "chrome-headless-shell")


def node() -> str | None:
    """Node.js, if it is here."""
    return shutil.which("node")


def node_modules() -> Path | None:
    """The folder with the npm packages of bindings_web, if they are installed; EMBEDLLM_NODE_MODULES names another."""
    chosen = os.environ.get("EMBEDLLM_NODE_MODULES")
    folder = Path(chosen) if chosen else _ROOT / "bindings_web" / "node_modules"
    return folder if folder.is_dir() else None


def chromium() -> str | None:
    """The whole browser, if it is here: with windows and extensions; EMBEDLLM_CHROMIUM names another."""
    return _first(_CHROMIUMS)


def headless_shell() -> str | None:
    """Chromium's headless shell, if it is here, else the whole browser; EMBEDLLM_CHROMIUM names another.

    It runs pages alike, but draws nothing around them: a page takes 0.7 s of the processor, in the whole browser 2.9.
    """
    return _first(_HEADLESS_SHELLS) or chromium()


def _first(names: tuple[str, ...]) -> str | None:
    return os.environ.get("EMBEDLLM_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def missing() -> str:
    """What is not here of all that a browser test needs, and how to get it; empty when all is here."""
    if node() is None:
        return "Node.js is not here; install Node.js 20 or newer"
    if node_modules() is None:
        return "the npm packages are not here; install them with: cd bindings_web && npm ci"
    if headless_shell() is None:
        return "Chromium is not here; install it with: .ci/browser.sh"
    return ""
