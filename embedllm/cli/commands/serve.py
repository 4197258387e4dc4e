"""`embedllm serve`: models over HTTP."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedllm.cli.options import common_options, note
from embedllm.errors import MissingPart
from embedllm.hub.name import hub_name
from embedllm.loading.options import LoadOptions

if TYPE_CHECKING:
    from embedllm.server.endpoint import ToolServers
    from embedllm.server.model_names import ServedModel
    from embedllm.server.request_record import Tracing

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _bytes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A size such as 8G."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)([kmg]?)(i?b)?", value.strip().lower())
    if match is None:
        raise click.BadParameter(f"{value!r} is no size; expected bytes, or a number with K, M or G: 8G.")
    return int(match[1]) * _UNITS[match[2]]


def _pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Options of the form NAME=VALUE."""
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not (name and equals and rest):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE.")
        pairs[name] = rest
    return pairs


@click.command(short_help="Serve models over HTTP: OpenAI's and Anthropic's APIs.")
@click.argument("models", nargs=-1, metavar="[MODEL | NAME=MODEL]...")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen at. Others than loopback need an API key or --no-auth.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, metavar="N", help="Port; 0: any free one."
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="API keys, one a line. Also: EMBEDLLM_API_KEY (several with commas between them).",
)
@click.option("--no-auth", is_flag=True, help="Serve other machines without an API key.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Further name in the Host header, as a proxy sends it. Repeatable.",
)
@click.option(
    "--allowed-origin",
    "allowed_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Web pages that may use the server: https://name:port, or '*'. Repeatable.",
)
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="ALIAS=NAME",
    callback=_pairs,
    help="Another name of a model. Repeatable.",
)
@click.option(
    "--pin",
    "pinned",
    multiple=True,
    metavar="NAME",
    help="Load this model at the start, and never unload it. Repeatable. A single model is pinned.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=_bytes,
    help="Memory for all models together, such as 8G. Default: nine tenths of what is free.",
)
@click.option(
    "--idle-unload",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Unload models that are not pinned after this time without a request.",
)
@click.option("--device", metavar="NAME", help="Device, or a comma-separated list to try in order.")
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="CPU threads. Default: number of physical cores.",
)
@click.option("--kv", type=click.Choice(["int8", "int4"]), help="Quantize the KV cache.")
@click.option(
    "--context",
    type=click.IntRange(min=2),
    metavar="N",
    help="Maximum number of tokens of a prompt and its reply. Default: all that the export holds.",
)
@click.option(
    "--draft", type=click.Path(), metavar="FOLDER", help="Draft model for speculative decoding; of one MODEL."
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=PATH",
    callback=_pairs,
    help="LoRA adapter (PEFT format) of the first model; requests name it as their model. Repeatable.",
)
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Store the KV cache of prompts here. Cached prompts are stored unencrypted.",
)
@click.option("--prefix-cache", metavar="SIZE", callback=_bytes, help="Memory for KV that requests share, a model.")
@click.option("--max-sequences", type=click.IntRange(min=1), metavar="N", help="Requests that a model runs at once.")
@click.option(
    "--max-waiting",
    type=click.IntRange(min=0),
    metavar="N",
    help="Requests that wait for a model at most; one more gets 429.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="N",
    help="Requests at the same time; one more gets 429.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Most tokens of a reply.")
@click.option(
    "--max-body", default="8M", show_default=True, metavar="SIZE", callback=_bytes, help="Most bytes of a request."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of a reply.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that replies get to end when the server is stopped.",
)
@click.option(
    "--mcp",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help='MCP servers in a JSON file {"mcpServers": {...}}, whose tools requests to /v1/responses may have run.',
)
@click.option("--otel", is_flag=True, help="OpenTelemetry traces, as the OTEL_* environment variables say.")
@click.option("--page/--no-page", default=True, show_default=True, help="The built-in chat page at /.")
@common_options
def serve(
    models: tuple[str, ...],
    *,
    host: str,
    port: int,
    api_key_file: Path | None,
    no_auth: bool,
    allowed_hosts: tuple[str, ...],
    allowed_origins: tuple[str, ...],
    aliases: dict[str, str],
    pinned: tuple[str, ...],
    memory: int | None,
    idle_unload: float | None,
    device: str | None,
    threads: int,
    kv: str | None,
    context: int | None,
    draft: str | None,
    adapters: dict[str, str],
    cache_dir: Path | None,
    prefix_cache: int | None,
    max_sequences: int | None,
    max_waiting: int | None,
    max_requests: int,
    max_tokens: int | None,
    max_body: int,
    timeout: float,
    grace: float,
    mcp: Path | None,
    otel: bool,
    page: bool,
) -> None:
    """Serve models over HTTP at http://127.0.0.1:8080/v1, with a chat page at http://127.0.0.1:8080.

    MODEL is what --model of 'embedllm run' takes; default: demo. NAME is what clients write as "model"; without it, the
    last part of the path. Several models are loaded when they are asked for, and unloaded to make room.

    \b
    embedllm serve demo
    curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "list files"}]}'
    embedllm serve small=org/small large=./large-model --pin small --memory 16G

    Ctrl-C, or SIGTERM, ends it: replies under way get --grace seconds. See docs/server.md.
    """
    _check_installed()
    from embedllm.backends.system.host_memory import limit_heaps
    from embedllm.server.model_pool import ModelPool
    from embedllm.server.run import serve as run_server
    from embedllm.server.settings import ServerSettings

    settings = ServerSettings(
        host=host, port=port, api_keys=_api_keys(api_key_file), no_auth=no_auth, allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins, max_body_bytes=max_body, max_requests=max_requests, max_tokens=max_tokens,
        request_timeout_s=timeout, end_timeout_s=grace, has_page=page,
    )  # fmt: skip
    options = LoadOptions(device=device, threads=threads, kv=kv, context=context,
                          draft=draft, cache_dir=cache_dir, prefix_cache=prefix_cache, max_sequences=max_sequences,
                          max_waiting=max_waiting)  # fmt: skip
    served = served_models(models or ("demo",), options, adapters=adapters, aliases=aliases, pinned=pinned)
    for one in served:  # else it is only said once the model is asked for
        if one.path != "demo" and hub_name(one.path) is None and not Path(one.path).exists():
            raise click.UsageError(
                f"there is no '{one.path}'; expected a folder, a GGUF file, or 'org/name' of the hub."
            )
    pool = ModelPool(served, memory=memory, idle_seconds=idle_unload)
    _log_to_stderr()
    limit_heaps(2)  # models that are unloaded leave less behind
    with _tracing(otel) as tracing, _tool_servers(mcp) as tool_servers:
        run_server(pool, settings, tracing=tracing, tool_servers=tool_servers,
                   on_ready=lambda url: note(f"serving {', '.join(one.name for one in served)} at {url}"))  # fmt: skip


@contextmanager
def _tool_servers(file: Path | None) -> Iterator[ToolServers | None]:
    """The MCP servers of a file, open."""
    if file is None:
        yield None
        return
    from embedllm.integrations.mcp import McpServers

    with McpServers(file) as servers:
        tools_by_server = servers.tools_by_server
        for label, tools in tools_by_server.items():
            note(f"MCP server {label}: {', '.join(tools) or 'no tools'}")
        yield tools_by_server


@contextmanager
def _tracing(is_on: bool) -> Iterator[Tracing | None]:
    """What --otel asks for. Its packages take a while to import, and are not looked for without it."""
    if not is_on:
        yield None
        return
    from embedllm.server.tracing import tracing_from_environment

    with closing(tracing_from_environment()) as tracing:
        yield tracing


def served_models(
    models: tuple[str, ...],
    options: LoadOptions,
    *,
    adapters: dict[str, str],
    aliases: dict[str, str],
    pinned: tuple[str, ...],
) -> list[ServedModel]:
    """What the command line lists. Raises UsageError for names that there are not."""
    from dataclasses import replace

    from embedllm.server.model_names import ServedModel

    named = [_named(model) for model in models]
    names = [name for name, _ in named]
    for option, used in (("--pin", pinned), ("--alias", aliases.values())):
        if odd := [name for name in used if name not in names]:
            raise click.UsageError(f"{option} names '{odd[0]}'; the models are: {', '.join(names)}.")
    if options.draft is not None and len(named) > 1:
        raise click.UsageError("--draft goes with one model.")
    return [
        ServedModel(
            name=name,
            path=path,
            aliases=tuple(alias for alias, of in aliases.items() if of == name),
            options=replace(options, adapters=dict(adapters)) if adapters and place == 0 else options,
            pinned=name in pinned or len(named) == 1,
        )
        for place, (name, path) in enumerate(named)
    ]


def _named(model: str) -> tuple[str, str]:
    """NAME=MODEL, or the last part of the path as the name."""
    name, equals, path = model.partition("=")
    if equals and name and path and not Path(model).exists():
        return name, path
    last = Path(model).resolve().name if Path(model).exists() else model.rpartition("/")[2]
    return last.removesuffix(".gguf"), model


def _api_keys(file: Path | None) -> tuple[str, ...]:
    keys = os.environ.get("EMBEDLLM_API_KEY", "").split(",")
    if file is not None:
        keys += file.read_text(encoding="utf-8").splitlines()
    return tuple(key.strip() for key in keys if key.strip())


def _check_installed() -> None:
    missing = [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise MissingPart(f"'embedllm serve' needs {', '.join(missing)}: pip install \"embedllm[server]\"")


def _log_to_stderr() -> None:
    """Requests, with their paths, statuses and times; never what they hold."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    levels: dict[str, int] = {"embedllm.server": logging.INFO, "uvicorn.error": logging.WARNING}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
