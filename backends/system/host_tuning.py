"""What the library may change in the process that it runs in, one switch for all: docs/guide-embed.md#host."""

from __future__ import annotations

import logging
import os
from functools import cache

SWITCH = "EMBEDLLM_HOST_TUNING"  # environment variable: names with commas between them, "all" or "none"
PAGES = "pages"  # moves packed weights to pages of 2 MiB; nothing else can see it, so it is on without the switch
TRIM = "trim"  # gives freed memory of the process's heap back to the system
QUIET = "quiet"  # silences ONNX Runtime's default logger while a plug-in or CUDA is loaded
ENVIRONMENT = "environment"  # sets variables that ONNX Runtime reads, while a plug-in or a CUDA session is loaded
_ALL = frozenset({PAGES, TRIM, QUIET, ENVIRONMENT})
_DEFAULT = frozenset({PAGES})
_log = logging.getLogger("embedllm")


def is_on(tuning: str) -> bool:
    """Whether the switch, or its default, has one of the names above."""
    setting = os.environ.get(SWITCH, "").strip().lower()
    if not setting:
        return tuning in _DEFAULT
    names = _names(setting)
    return "all" in names or tuning in names


@cache
def _names(setting: str) -> frozenset[str]:
    """The names in the switch; a warning for each value that has others, once."""
    names = frozenset(name.strip() for name in setting.split(",")) - {""}
    if unknown := names - _ALL - {"all", "none"}:
        _log.warning("%s has %s; expected all, none, or some of %s", SWITCH, sorted(unknown), ", ".join(sorted(_ALL)))
    return names
