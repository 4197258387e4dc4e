"""Fixtures of the samples' tests; without Qt, those of the desktop sample's window are not collected."""

from __future__ import annotations

try:
    import PySide6.QtWidgets  # noqa: F401 - it may be installed and lack a library of the system
except ImportError:  # docs/contributing.md has what installs it
    collect_ignore = ["test_desktop.py", "test_desktop_panes.py", "test_desktop_transcript.py"]
else:
    from tests.support.desktop_fixtures import application, gate, opened, window  # noqa: F401 - fixtures
