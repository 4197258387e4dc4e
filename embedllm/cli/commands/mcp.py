"""`embedllm mcp`: a model as an MCP server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

import embedllm
from embedllm.cli.options import common_options


@click.command(short_help="Serve a model as an MCP server (stdio).")
@click.argument("model")
@click.option("--device", metavar="NAME", help="A device of 'embedllm devices'. Default: the best.")
@click.option("--threads", type=click.IntRange(min=0), default=0,
              help="CPU threads. Default: number of physical cores.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=1), default=1024, show_default=True, metavar="N",
              help="Maximum number of tokens of a reply whose caller names no other.")  # fmt: skip
@common_options
def mcp(model: str, *, device: str | None, threads: int, max_tokens: int) -> None:
    """Serve MODEL to an MCP client, which starts this command as a subprocess.

    Its tools: generate of a language model, embed of an embedding model, rerank of a reranker. It ends when stdin ends.
    See docs/mcp.md.
    """
    from embedllm.integrations.mcp.server import model_server

    with _stdout_for_messages():
        llm = embedllm.load(model, device=device, threads=threads)
    with llm:
        asyncio.run(model_server(llm, max_tokens=max_tokens).run_stdio_async())


@contextmanager
def _stdout_for_messages() -> Iterator[None]:
    """Within the block stdout is stderr, also for what is written in C; the package mcp does so while it serves."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)
