"""A model as an MCP server: its tools by a client of the package mcp, in this process and over stdio."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm import Cancel, Model, Sampling
from embedllm.export import convert
from tests.support.encoder_folders import write_reranker
from tests.support.scripted import scripted

pytest.importorskip("mcp")

from mcp import Client
from mcp_types import CallToolResult, TextContent

from embedllm.integrations.mcp import McpServers
from embedllm.integrations.mcp.server import model_server

ROOT = Path(__file__).parents[3]


def served(model: Model, work: Callable[[Client], Awaitable[Any]]) -> Any:  # what the work gives
    async def run() -> Any:
        async with Client(model_server(model)) as client:
            return await work(client)

    return asyncio.run(run())


def call(model: Model, name: str, **arguments: Any) -> CallToolResult:  # JSON
    return served(model, lambda client: client.call_tool(name, arguments))


def error_of(result: CallToolResult) -> str:
    assert result.is_error
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def test_a_language_model_generates(demo: Model) -> None:
    listed = served(demo, lambda client: client.list_tools()).tools
    assert [tool.name for tool in listed] == ["generate"]
    assert listed[0].input_schema["required"] == ["prompt"]
    assert listed[0].input_schema["properties"]["max_tokens"]["default"] == 1024
    said: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "list files"}]
    expected = demo.chat(said, Sampling(temperature=0.0), max_tokens=12)
    given = {"prompt": "list files", "system": "Be brief.", "max_tokens": 12, "temperature": 0}
    result = call(demo, "generate", **given).structured_content
    assert result == {"text": expected.text, "finish_reason": expected.finish_reason,
                      "prompt_tokens": expected.statistics.prompt_tokens, "tokens": len(expected.tokens)}  # fmt: skip


def test_a_reply_follows_a_schema(demo: Model) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    result = call(demo, "generate", prompt="A number.", json_schema=schema, max_tokens=40).structured_content
    assert list(json.loads(result["text"])) == ["n"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"prompt": "x " * 20_000}, "tokens"),
        ({"prompt": "x", "max_tokens": 0}, "greater than or equal to 1"),
        ({"prompt": "x", "json_schema": {"type": "nothing"}}, "nothing"),
        ({}, "prompt"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_to_its_caller(demo: Model, arguments: dict[str, Any], error: str) -> None:
    assert error in error_of(call(demo, "generate", **arguments))


def test_progress_is_told_and_a_cancelled_call_ends_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedllm.integrations.mcp.server._PROGRESS_S", 0.0)
    model, _ = scripted("x" * 50, "y" * 1_000_000)
    told: list[tuple[float, float | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    async def work(client: Client) -> None:
        first = await client.call_tool("generate", {"prompt": "?", "max_tokens": 60}, progress_callback=on_progress)
        assert first.structured_content["text"] == "x" * 50
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.call_tool("generate", {"prompt": "?", "max_tokens": 90_000}), 0.3)
        for _ in range(500):
            if not model.runner.scheduler.running:
                return
            await asyncio.sleep(0.02)
        pytest.fail("the reply goes on")

    served(model, work)
    assert told[0] == (1, 60)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_an_embedding_model_embeds(embedder: Path) -> None:
    texts = ["one", "another text"]
    with embedllm.load(embedder) as model:
        result = call(model, "embed", texts=texts).structured_content
        assert result["embeddings"] == pytest.approx(model.embed(texts), abs=1e-5)
        assert "knows 'query'" in error_of(call(model, "embed", texts=texts, kind="nothing"))
        assert "embed" in error_of(call(model, "embed", texts=[]))


def test_a_reranker_ranks(tmp_path: Path) -> None:
    convert(write_reranker(tmp_path / "checkpoint"), tmp_path / "reranker")
    documents = ["one", "two words", "three more words"]
    with embedllm.load(tmp_path / "reranker") as model:
        found = call(model, "rerank", query="what", documents=documents, top=2)
        assert not found.is_error, found.content
        result = found.structured_content
        expected = model.rerank("what", documents, top=2)
    assert [one["index"] for one in result["ranked"]] == [one.index for one in expected]
    assert [one["score"] for one in result["ranked"]] == pytest.approx([one.score for one in expected], abs=1e-5)


@pytest.mark.slow
def test_the_command_serves_over_stdio_and_its_tool_is_called_by_ours(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": ["-m", "embedllm", "mcp", "demo", "--max-tokens", "4"],
              "cwd": str(ROOT), "env": {"PYTHONPATH": str(ROOT)}}  # fmt: skip
    with McpServers({"demo": server}) as servers:
        (tool,) = servers.tools
        result = tool.run({"prompt": "list files", "temperature": 0}, Cancel())
        assert isinstance(result, str)
        assert json.loads(result)["tokens"] == 4
