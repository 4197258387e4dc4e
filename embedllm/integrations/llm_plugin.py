"""A plug-in of the command `llm` and its Python API: https://llm.datasette.io.

    llm embedllm add model.gguf --name smol
    llm -m embedllm/smol "What is the capital of France?"

Models: "embedllm/demo", and those added by `llm embedllm add`. With streaming, options, system prompts, conversations,
schemas, tools, asyncio and embeddings; without attachments, which no model here takes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import llm
from llm.models import EmbeddingModel
from llm.parts import Message, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field, create_model

from embedllm.files.atomic import write_json
from embedllm.integrations.shared_models import (
    check_calls,
    drop_none,
    function_call,
    function_tool,
    in_thread,
    json_format,
    shared_model,
)
from embedllm.sampling.option_table import SAMPLING_OPTIONS

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk

DEMO = {"name": "demo", "path": "demo", "device": None, "embeds": False}

_numbers: Any = {
    option.name: (option.kind | None, Field(description=option.text, default=None))
    for option in SAMPLING_OPTIONS
    if not option.is_list
}
Options = create_model(
    "Options",
    __base__=llm.Options,
    **_numbers,
    max_tokens=(int | None, Field(description="Maximum number of tokens to generate.", default=None)),
    stop=(str | None, Field(description="A text that ends the reply.", default=None)),
    timeout=(float | None, Field(description="Seconds after which the reply ends with what there is.", default=None)),
)


class _Shared:
    """What the model for threads and the model for asyncio have in common."""

    can_stream = True
    supports_schema = True
    supports_tools = True

    def __init__(self, name: str, path: str, device: str | None) -> None:
        self.model_id = f"embedllm/{name}"
        self.path, self.device = path, device
        self._model: Any = None  # from the first prompt on

    def model(self) -> Any:
        if self._model is None:
            self._model = shared_model(self.path, self.device)
        return self._model

    def request(self, prompt: llm.Prompt) -> dict[str, Any]:
        """The arguments of Model.stream()."""
        options = drop_none(**prompt.options.model_dump())
        if isinstance(prompt.schema, dict):  # llm has made one of a pydantic class
            options["response_format"] = json_format(prompt.schema)
        if prompt.tools:
            options["tools"] = [_tool(tool) for tool in prompt.tools]
        return {"prompt": _messages(prompt.messages), **options}

    def close_turn(self, chunks: Sequence[Chunk], response: Any) -> None:
        """What `llm` keeps of a reply beside its text. Raises ValueError for a tool call that cannot be run."""
        last = chunks[-1]
        calls = [call for chunk in chunks for call in chunk.tool_calls]
        check_calls(calls)
        for call in calls:
            response.add_tool_call(llm.ToolCall(name=call.name, arguments=dict(call.arguments), tool_call_id=call.id))
        response.set_usage(
            input=last.statistics.prompt_tokens,
            output=last.statistics.tokens,
            details={"cached_tokens": last.statistics.cached_tokens},
        )
        response.response_json = {"finish_reason": last.finish_reason, "device": self.model().device.name}


class EmbedLLM(_Shared, llm.Model):
    Options: Any = Options  # llm declares a class of its own

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[StreamEvent]:
        chunks: list[Chunk] = []
        for chunk in self.model().stream(**self.request(prompt)):
            chunks.append(chunk)
            yield from _events(chunk)
        self.close_turn(chunks, response)


class AsyncEmbedLLM(_Shared, llm.AsyncModel):
    Options: Any = Options  # llm declares a class of its own

    async def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.AsyncResponse, conversation: llm.AsyncConversation | None
    ) -> AsyncGenerator[StreamEvent, None]:
        model = await in_thread(self.model)
        chunks: list[Chunk] = []
        async for chunk in await model.aopen_stream(**self.request(prompt)):
            chunks.append(chunk)
            for event in _events(chunk):
                yield event
        self.close_turn(chunks, response)


class EmbedLLMEmbeddings(EmbeddingModel):
    def __init__(self, name: str, path: str, device: str | None) -> None:
        self.model_id = f"embedllm/{name}"
        self.path, self.device = path, device
        self._model: Any = None  # from the first text on

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        if self._model is None:
            self._model = shared_model(self.path, self.device)
        texts = [item for item in items if isinstance(item, str)]  # llm refuses bytes before
        yield from self._model.embed(texts).tolist()


def _events(chunk: Chunk) -> Iterator[StreamEvent]:
    if chunk.reasoning:
        yield StreamEvent(type="reasoning", chunk=chunk.reasoning)
    if chunk.text:
        yield StreamEvent(type="text", chunk=chunk.text)
    for call in chunk.tool_calls:  # whole: what is shown of one is what is run
        yield StreamEvent(type="tool_call_name", chunk=call.name, tool_call_id=call.id)
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        yield StreamEvent(type="tool_call_args", chunk=arguments, tool_call_id=call.id)


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, llm.Tool):
        raise ValueError(f"the tool {tool!r} runs on the server of another provider; models here run on this machine.")
    return function_tool(tool.name, tool.description, tool.input_schema)


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """llm's messages in OpenAI's form. Raises ValueError for a part that no model here takes."""
    return [shown for message in messages for shown in _message(message)]


def _message(message: Message) -> list[dict[str, Any]]:
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            text.append(part.text)
        elif isinstance(part, ReasoningPart):
            reasoning.append(part.text)
        elif isinstance(part, ToolCallPart):
            calls.append(function_call(part.tool_call_id or "", part.name, part.arguments))
        elif isinstance(part, ToolResultPart):
            result = part.output if part.exception is None else f"error: {part.exception}"
            results.append(
                {"role": "tool", "tool_call_id": part.tool_call_id or "", "name": part.name, "content": result}
            )
        else:
            raise ValueError(f"a message has a {type(part).__name__}; models here take texts and tool calls only.")
    if not (text or calls):
        return results
    shown: dict[str, Any] = {"role": message.role, "content": "".join(text)}
    if calls:
        shown["tool_calls"] = calls
    if reasoning:
        shown["reasoning_content"] = "".join(reasoning)
    return [shown, *results]


# --- the models that `llm` knows


def _list_file() -> Path:
    return llm.user_dir() / "embedllm-models.json"


def _added() -> list[dict[str, Any]]:
    """Raises ValueError for a file that is damaged."""
    path = _list_file()
    if not path.is_file():
        return []
    try:
        return [{"name": str(one["name"]), "path": str(one["path"]), "device": one["device"], "embeds": one["embeds"]}
                for one in json.loads(path.read_text(encoding="utf-8"))]  # fmt: skip
    except (ValueError, TypeError, KeyError) as error:
        raise click.ClickException(
            f"'{path}' is not what 'llm embedllm add' wrote ({type(error).__name__}: {error}). Delete it and add the "
            "models again."
        ) from error


@llm.hookimpl
def register_models(register: Any) -> None:
    for one in (DEMO, *_added()):
        if not one["embeds"]:
            arguments = one["name"], one["path"], one["device"]
            register(EmbedLLM(*arguments), AsyncEmbedLLM(*arguments))


@llm.hookimpl
def register_embedding_models(register: Any) -> None:
    for one in _added():
        if one["embeds"]:
            register(EmbedLLMEmbeddings(one["name"], one["path"], one["device"]))


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    @cli.group(name="embedllm")
    def group() -> None:
        """Add and list models that embedllm runs."""

    @group.command()
    @click.argument("path")
    @click.option("--name", help="The model is then 'embedllm/NAME'. Default: the last part of PATH.")
    @click.option("--device", help="Device to run it on. Default: the best one.")
    def add(path: str, name: str | None, device: str | None) -> None:
        """Add a model: a folder, a GGUF file or a Hugging Face repository (org/name).

        It is loaded once, to see that it runs and whether it generates text or embeds it.
        """
        from embedllm.errors import EmbedError

        place = str(Path(path).resolve()) if Path(path).exists() else path
        name = name or Path(path).stem
        if name in {one["name"] for one in (DEMO, *_added())}:
            raise click.ClickException(f"there is a model 'embedllm/{name}' already; choose another --name.")
        try:
            model = shared_model(place, device)
        except (EmbedError, OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        encoder = model.package.encoder
        embeds = encoder is not None
        if encoder is not None and encoder.score_activation:
            raise click.ClickException(f"'{path}' is a reranker, for which 'llm' has no command.")
        if not embeds and not model.can_chat:
            raise click.ClickException(f"'{path}' has no chat template, and 'llm' sends messages.")
        write_json(_list_file(), [*_added(), {"name": name, "path": place, "device": device, "embeds": embeds}])
        click.echo(f"embedllm/{name} ({'embeddings' if embeds else 'text'}, on {model.device.name})")

    @group.command(name="list")
    def list_models() -> None:
        """List the added models."""
        for one in (DEMO, *_added()):
            click.echo(f"embedllm/{one['name']}  {one['path']}" + (f"  on {one['device']}" if one["device"] else ""))

    @group.command()
    @click.argument("name")
    def remove(name: str) -> None:
        """Forget a model; its files stay."""
        model_name = name.removeprefix("embedllm/")
        entries = [one for one in _added() if one["name"] != model_name]
        if len(entries) == len(_added()):
            raise click.ClickException(
                f"there is no added model 'embedllm/{model_name}'; 'llm embedllm list' shows them."
            )
        write_json(_list_file(), entries)
