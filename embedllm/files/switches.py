"""The switches in the environment, EMBEDLLM_...: one rule for what their values mean."""

from __future__ import annotations

import logging
import os
from functools import cache

_ON, _OFF = ("on", "1", "true", "yes"), ("off", "0", "false", "no")
_log = logging.getLogger("embedllm")


def switch(name: str, *others: str) -> str:
    """What a variable of the environment says: "on", "off", or one of `others`; "" where it is not set, or empty.

    Case and blanks around it do not matter. Another value counts as not set, and is warned of once.
    """
    return _meaning(name, os.environ.get(name, ""), others)


@cache
def _meaning(name: str, value: str, others: tuple[str, ...]) -> str:
    plain = value.strip().lower()
    if plain in _ON or plain in _OFF:
        return "on" if plain in _ON else "off"
    if plain and plain not in others:
        expected = ", ".join((*_ON, *_OFF, *others))
        _log.warning("%s is '%s', which changes nothing; expected one of %s", name, value, expected)
        return ""
    return plain
