"""For PyInstaller, which asks installed packages for their hooks by the entry point `pyinstaller40`."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """The folders with hooks: what an application that is packed with embedllm has to take along."""
    return [str(Path(__file__).parent)]
