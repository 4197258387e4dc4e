"""The file that lists MCP servers: what it may say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from embedllm.integrations.mcp.configuration import ServerConfiguration, parse_servers, read_servers


def test_servers_are_read_with_their_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_KEY", "se$cret")
    monkeypatch.delenv("MCP_PLACE", raising=False)
    servers = {
        "files": {"command": "run", "args": ["-x", "${MCP_PLACE:-/tmp}"], "env": {"KEY": "${MCP_KEY}"}, "cwd": "/a"},
        "net": {"type": "streamable-http", "url": "https://example.org/mcp", "headers": {"A": "Bearer ${MCP_KEY}"}},
        "off": {"command": "other", "disabled": True},
    }
    file = tmp_path / "mcp.json"
    file.write_text("\ufeff" + json.dumps({"mcpServers": servers, "other": 1}), encoding="utf-8")
    assert read_servers(file) == {
        "files": ServerConfiguration(
            name="files", command="run", args=("-x", "/tmp"), env={"KEY": "se$cret"}, cwd="/a"
        ),
        "net": ServerConfiguration(
            name="net", url="https://example.org/mcp", headers={"A": "Bearer se$cret"}
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ("npx", "server 's' is 'npx'; expected"),
        ({}, 'has neither; expected "command" or "url"'),
        ({"command": "a", "url": "http://b"}, "has command and url"),
        ({"type": "sse", "url": "http://b"}, "of the type 'sse'; expected 'stdio' or 'http'"),
        ({"type": "http", "command": "a"}, 'has command; expected "url"'),
        ({"command": "a", "args": "b"}, "args is 'b'"),
        ({"command": "a", "args": [1]}, "args is 1; expected a text"),
        ({"command": "a", "env": {"B": 1}}, "env 'B' is 1"),
        ({"url": "file:///etc/passwd"}, "expected http://"),
        ({"url": "http:///mcp"}, "expected http://"),
        ({"command": "${NO_SUCH_VARIABLE}"}, "variable NO_SUCH_VARIABLE, which is not set"),
    ],
)
def test_what_no_server_is_is_refused_by_name(values: Any, error: str) -> None:  # JSON of any shape
    with pytest.raises(ValueError, match="server 's'") as refused:
        parse_servers({"s": values})
    assert error in str(refused.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": []}', '{"servers": {}}', "[" * 100_000, "\udcff"])
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"mcp\.json' (is no JSON|has no object)"):
        read_servers(file)


def test_keys_of_other_clients_are_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert list(parse_servers({"s": {"command": "a", "autoApprove": ["x"]}})) == ["s"]
    assert "server 's': ignored autoApprove" in caplog.text
