"""The plug-in of the command `llm`, with the real library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.tools.calls import ToolCall

llm = pytest.importorskip("llm")
plugin = import_module("embedllm.integrations.llm_plugin")

from click.testing import CliRunner, Result  # noqa: E402 # llm brings it
from llm.cli import cli  # noqa: E402

ASK = "list files by size"
SCHEMA = {"type": "object", "properties": {"safe": {"type": "boolean"}}, "required": ["safe"]}


@pytest.fixture(autouse=True)
def user_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    return tmp_path


class Scripted:
    """A model that replies with what it is given, and remembers what it was asked."""

    device = embedllm.devices()[0]

    def __init__(self, *replies: dict[str, Any]) -> None:
        self.replies, self.asked = list(replies), []

    def stream(self, **request: Any) -> Iterator[Chunk]:
        self.asked.append(request)
        statistics = Statistics(prompt_tokens=5, cached_tokens=2, tokens=3)
        yield Chunk(token=1, logprob=0.0, statistics=statistics, finish_reason="stop",
                    **{"text": "", **self.replies.pop(0)})  # fmt: skip


def demo_model() -> Any:
    return llm.get_model("embedllm/demo")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments], catch_exceptions=False)


def test_a_prompt_gives_the_models_reply_and_its_usage(demo: embedllm.Model) -> None:
    expected = demo.chat([{"role": "user", "content": ASK}], temperature=0)
    response = demo_model().prompt(ASK, temperature=0)
    assert "".join(response) == expected.text
    assert (response.input_tokens, response.output_tokens) == (
        expected.statistics.prompt_tokens,
        expected.statistics.tokens,
    )


def test_options_and_the_system_prompt_reach_the_model(demo: embedllm.Model) -> None:
    said = [{"role": "system", "content": "Be short."}, {"role": "user", "content": ASK}]
    response = demo_model().prompt(ASK, system="Be short.", temperature=0, max_tokens=2)
    assert response.text() == demo.chat(said, temperature=0, max_tokens=2).text
    assert response.output_tokens == 2
    with pytest.raises(ValueError, match="temperatur"):
        demo_model().prompt(ASK, temperatur=0)


def test_a_conversation_sends_its_history(demo: embedllm.Model) -> None:
    talk = demo_model().conversation()
    first = talk.prompt(ASK, temperature=0).text()
    second = talk.prompt("by date", temperature=0)
    said = [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "by date"},
    ]
    assert second.text() == demo.chat(said, temperature=0).text
    assert second.input_tokens == len(demo.prompt_tokens(said))


def test_a_reply_follows_a_schema() -> None:
    assert type(json.loads(demo_model().prompt(ASK, schema=SCHEMA).text())["safe"]) is bool


def test_asyncio_gives_the_same_reply() -> None:
    async def reply() -> str:
        return await llm.get_async_model("embedllm/demo").prompt(ASK, temperature=0).text()

    assert asyncio.run(reply()) == demo_model().prompt(ASK, temperature=0).text()


def test_tools_are_called_and_their_results_sent() -> None:
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    model = demo_model()
    call = ToolCall(id="c1", name="weather", arguments={"city": "Paris"})
    model._model = scripted = Scripted({"tool_calls": (call,), "reasoning": "Look."}, {"text": "It rains."})
    assert model.chain("How is Paris?", tools=[weather]).text() == "It rains."
    assert scripted.asked[0]["tools"][0]["function"]["name"] == "weather"
    assert scripted.asked[1]["prompt"][1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "Look.",
         "tool_calls": [{"id": "c1", "type": "function",
                         "function": {"name": "weather", "arguments": {"city": "Paris"}}}]},
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "rain in Paris"},
    ]  # fmt: skip


def test_a_call_that_cannot_be_run_is_an_error() -> None:
    model = demo_model()
    model._model = Scripted({"tool_calls": (ToolCall(id="c1", name="x", problem="no such tool", text="<x>"),)})
    with pytest.raises(ValueError, match="no such tool"):
        model.prompt("hello").text()


def test_attachments_are_refused() -> None:
    with pytest.raises(ValueError, match="attachments"):
        demo_model().prompt("what is this", attachments=[llm.Attachment(type="image/png", content=b"x")])
    picture = llm.Message(role="user", parts=[llm.parts.AttachmentPart()])
    with pytest.raises(ValueError, match="AttachmentPart"):
        demo_model().prompt(messages=[picture]).text()


def test_models_are_added_listed_used_and_removed(
    tiny_package: Callable[..., Path], embedder: Path, vectors_of: Callable[..., list[list[float]]]
) -> None:
    done = run("embedllm", "add", str(tiny_package("llama")), "--name", "tiny", "--device", "cpu")
    assert (done.exit_code, done.output) == (0, "embedllm/tiny (text, on cpu)\n")
    assert run("embedllm", "add", str(embedder)).output == "embedllm/embedder (embeddings, on cpu)\n"
    assert "already" in run("embedllm", "add", str(embedder)).output
    assert "there is no folder" in run("embedllm", "add", "nowhere").output
    assert [line.split()[0] for line in run("embedllm", "list").output.splitlines()] == [
        "embedllm/demo",
        "embedllm/tiny",
        "embedllm/embedder",
    ]
    assert run("-m", "embedllm/tiny", "--no-log", "hello", "-o", "max_tokens", "3").exit_code == 0
    vectors = llm.get_embedding_model("embedllm/embedder").embed_multi(["one", "two"])
    assert list(vectors) == vectors_of(["one", "two"], None)
    assert run("embedllm", "remove", "tiny").exit_code == 0
    assert "no added model" in run("embedllm", "remove", "tiny").output
    with pytest.raises(llm.UnknownModelError):
        llm.get_model("embedllm/tiny")


def test_a_damaged_list_says_what_to_do(user_dir: Path) -> None:
    (user_dir / "embedllm-models.json").write_text("[{}]")
    done = run("embedllm", "list")
    assert done.exit_code == 1
    assert "Delete it" in done.output
