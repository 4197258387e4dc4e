"""A loaded model as an MCP server: what it can do, generate, embed or rerank, as tools."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from embedllm.errors import EmbedError
from embedllm.files.optional_packages import needs
from embedllm.files.version import __version__
from embedllm.generation.completion import collect

with needs("mcp", "an MCP server"):
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
with needs("pydantic", "an MCP server"):  # comes with mcp
    from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk
    from embedllm.generation.options import PromptOptions
    from embedllm.model.model import Model
    from embedllm.text.prompt import Prompt

_PROGRESS_S = 0.25
_MAX_TEXTS = 1024


class Generated(BaseModel):
    """A reply."""

    text: str
    finish_reason: str
    prompt_tokens: int
    tokens: int


class Embedded(BaseModel):
    """A vector for each text."""

    embeddings: list[list[float]]


class Score(BaseModel):
    """A document's place in the list that was given, and its score."""

    index: int
    score: float


class Reranked(BaseModel):
    """The documents, the best first."""

    ranked: list[Score]


def model_server(model: Model, *, max_tokens: int = 1024) -> MCPServer[Any]:
    """A server of the package mcp with the tools that the model can do; run_stdio_async() and the like serve it.

    max_tokens: of a reply whose caller names no other number.
    """
    server = MCPServer("embedllm", version=__version__, log_level="WARNING",
                       instructions=f"The model '{model.name}', which runs on this machine.")  # fmt: skip
    encoder = getattr(model.package, "encoder", None)
    if encoder is None:
        server.add_tool(_generate(model, max_tokens), name="generate", structured_output=True)
    elif encoder.score_activation:
        server.add_tool(_rerank(model), name="rerank", structured_output=True)
    else:
        server.add_tool(_embed(model), name="embed", structured_output=True)
    return server


def _generate(model: Model, most: int) -> Callable[..., Any]:
    async def generate(
        ctx: Context,
        prompt: Annotated[str, Field(description="What the model is asked.")],
        system: Annotated[str | None, Field(description="System prompt.")] = None,
        max_tokens: Annotated[int, Field(description="Maximum number of tokens of the reply.", ge=1)] = most,
        temperature: Annotated[float | None, Field(description="Default: the model's.", ge=0)] = None,
        seed: Annotated[int | None, Field(description="Of random sampling.")] = None,
        json_schema: Annotated[
            dict[str, Any] | None, Field(description="A JSON schema that the reply follows, token by token.")
        ] = None,
    ) -> Generated:
        """Generates a reply to a prompt with the language model of this machine."""
        schema = {"type": "json_schema", "json_schema": {"name": "reply", "schema": json_schema}}
        options: PromptOptions = {"max_tokens": max_tokens, "response_format": schema if json_schema else None}
        if temperature is not None:
            options["temperature"] = temperature
        if seed is not None:
            options["seed"] = seed
        chunks: list[Chunk] = []
        progress_at = time.monotonic()
        with _raise_tool_errors():
            model_prompt = _prompt(model, system, prompt)
            async with aclosing(await model.aopen_stream(model_prompt, **options)) as stream:
                async for chunk in stream:
                    chunks.append(chunk)
                    if time.monotonic() - progress_at > _PROGRESS_S:
                        progress_at = time.monotonic()
                        await ctx.report_progress(len(chunks), max_tokens)
        reply = collect(chunks)
        return Generated(text=reply.text, finish_reason=reply.finish_reason,
                         prompt_tokens=reply.statistics.prompt_tokens, tokens=reply.statistics.tokens)  # fmt: skip

    return generate


def _prompt(model: Model, system: str | None, prompt: str) -> Prompt:
    if not model.can_chat:
        if system is not None:
            raise ValueError(f"'{model.name}' has no chat template; system cannot be given.")
        return prompt
    message = {"role": "user", "content": prompt}
    return [message] if system is None else [{"role": "system", "content": system}, message]


def _embed(model: Model) -> Callable[..., Any]:
    async def embed(
        texts: Annotated[list[str], Field(description="What to embed.", min_length=1, max_length=_MAX_TEXTS)],
        kind: Annotated[str | None, Field(description="'query' or 'document', or another prompt of the model.")] = None,
        dimensions: Annotated[int | None, Field(description="Truncate each vector to this number.", ge=1)] = None,
        truncate: Annotated[bool, Field(description="Leave out the end of a text that is too long.")] = False,
    ) -> Embedded:
        """Computes the embedding vectors of texts with the embedding model of this machine."""
        with _raise_tool_errors():
            vectors = await model.aembed(texts, kind=kind, dimensions=dimensions, truncate=truncate)
        return Embedded(embeddings=vectors.tolist())

    return embed


def _rerank(model: Model) -> Callable[..., Any]:
    async def rerank(
        query: Annotated[str, Field(description="What is looked for.")],
        documents: Annotated[list[str], Field(description="What to rank.", min_length=1, max_length=_MAX_TEXTS)],
        top: Annotated[int | None, Field(description="Only this number of the best ones.", ge=1)] = None,
        truncate: Annotated[bool, Field(description="Leave out the end of a text that is too long.")] = False,
    ) -> Reranked:
        """Ranks documents by how well they fit a query with the reranker of this machine."""
        with _raise_tool_errors():
            ranked = await model.arerank(query, documents, top=top, truncate=truncate)
        return Reranked(ranked=[Score(index=one.index, score=one.score) for one in ranked])

    return rerank


@contextmanager
def _raise_tool_errors() -> Iterator[None]:
    """Within the block, what is wrong with a call is said to its caller; of other errors the server's log has it."""
    try:
        yield
    except (EmbedError, ValueError) as error:
        raise ToolError(str(error)) from error
