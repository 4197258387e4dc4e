"""GET /: the built-in chat page, one file without outside resources."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from embedllm.server.endpoint import Endpoint, Exchange

_FILE = Path(__file__).with_name("page.html")


def endpoints() -> list[Endpoint]:
    """The row of the route table. The page's script and style are allowed by their hashes, and nothing else is."""
    page = _FILE.read_bytes()
    policy = (
        f"default-src 'none'; script-src '{_hash(page, b'script')}'; style-src '{_hash(page, b'style')}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer", "cache-control": "no-cache"}
    return [Endpoint(path="/", handle=partial(_answer, page, headers), summary="A chat page.", tag="Operation")]


async def _answer(page: bytes, headers: Mapping[str, str], exchange: Exchange, body: Mapping[str, Any]) -> None:
    await exchange.reply_bytes(page, "text/html; charset=utf-8", headers=headers)


def _hash(page: bytes, tag: bytes) -> str:
    """Of the one element of that name, as a Content-Security-Policy has it."""
    (text,) = re.findall(b"<" + tag + b">(.*?)</" + tag + b">", page, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(text).digest()).decode()
