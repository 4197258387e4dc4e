"""Which MCP servers to open: the "mcpServers" object that MCP's clients share, checked."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from embedllm.types import JSON

_log = logging.getLogger("embedllm.integrations.mcp")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KINDS = {
    "stdio": "command",
    "http": "url",
    "streamable-http": "url",
    "streamable_http": "url",
    "streamableHttp": "url",
}
_KNOWN = ("type", "command", "args", "env", "cwd", "url", "headers", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfiguration:
    """One server: a command to run, or a URL."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def read_servers(path: str | os.PathLike[str]) -> dict[str, ServerConfiguration]:
    """The servers of a JSON file {"mcpServers": {NAME: {...}}}.

    Raises OSError, and ValueError for a file of another shape.
    """
    file = Path(path)
    try:
        values = json.loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"'{file}' is no JSON file: {error}.") from error
    servers = values.get("mcpServers") if isinstance(values, dict) else None
    if not isinstance(servers, dict):
        raise ValueError(f'\'{file}\' has no object "mcpServers"; expected {{"mcpServers": {{NAME: {{...}}}}}}.')
    return parse_servers(servers, f"'{file}', ")


def parse_servers(servers: Mapping[str, JSON], where: str = "") -> dict[str, ServerConfiguration]:
    """The servers that are not disabled. ${NAME} and ${NAME:-DEFAULT} in texts are variables of the environment.

    where: the file, for errors. Raises ValueError, naming the server.
    """
    configurations: dict[str, ServerConfiguration] = {}
    for name, values in servers.items():
        place = f"{where}server '{name}'"
        if not isinstance(values, Mapping):
            raise ValueError(f'{place} is {values!r:.80}; expected {{"command": ...}} or {{"url": ...}}.')
        if unknown := [key for key in values if key not in _KNOWN]:
            _log.warning("%s: ignored %s; known are %s", place, ", ".join(unknown), ", ".join(_KNOWN))
        if not values.get("disabled"):
            configurations[name] = _server(name, values, place)
    return configurations


def _server(name: str, values: Mapping[str, JSON], place: str) -> ServerConfiguration:
    kind = values.get("type")
    if kind is not None and kind not in _KINDS:
        raise ValueError(f"{place} is of the type {kind!r}; expected 'stdio' or 'http' (streamable HTTP).")
    keys = [key for key in ("command", "url") if values.get(key)]
    if len(keys) != 1 or (kind is not None and _KINDS[str(kind)] != keys[0]):
        expected = f'"{_KINDS[str(kind)]}"' if kind is not None else '"command" or "url"'
        raise ValueError(f"{place} has {' and '.join(keys) or 'neither'}; expected {expected}, and one of them only.")
    args = values.get("args") or []
    if not isinstance(args, list):
        raise ValueError(f"{place}: args is {args!r:.80}; expected a list of texts.")
    url = _text(values.get("url") or "", f"{place}: url")
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ValueError(f"{place}: url is {url!r:.80}; expected http://... or https://...")
    cwd = values.get("cwd")
    return ServerConfiguration(
        name=name,
        command=_text(values.get("command") or "", f"{place}: command"),
        args=tuple(_text(each, f"{place}: args") for each in args),
        env=_texts(values.get("env"), f"{place}: env"),
        cwd=None if cwd is None else _text(cwd, f"{place}: cwd"),
        url=url,
        headers=_texts(values.get("headers"), f"{place}: headers"),
    )


def _texts(values: JSON, what: str) -> dict[str, str]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} is {values!r:.80}; expected an object of texts.")
    return {name: _text(value, f"{what} '{name}'") for name, value in values.items()}


def _text(value: JSON, what: str) -> str:
    """A text with its variables in place. Raises ValueError for another type and for a variable that is not set."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {value!r:.80}; expected a text.")

    def variable(match: re.Match[str]) -> str:
        setting = os.environ.get(match[1], match[2])
        if setting is None:
            raise ValueError(f"{what} names the variable {match[1]}, which is not set in the environment.")
        return setting

    return _VARIABLE.sub(variable, value)
