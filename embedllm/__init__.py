"""Embed a language model in an application: one exported folder, every device, one loop, no torch."""

from __future__ import annotations

__version__ = "0.1.0"
