"""MCP servers whose tools a model can call: opened together, called from threads or asyncio, closed together."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, cast

from embedllm.cancel import Cancel
from embedllm.errors import EmbedError
from embedllm.files.optional_packages import needs
from embedllm.generation.run_in_thread import run_in_thread
from embedllm.integrations.mcp.configuration import ServerConfiguration, parse_servers, read_servers
from embedllm.text.function_schema import FunctionTool
from embedllm.text.lone_surrogates import replace_surrogates

with needs("mcp", "MCP servers"):
    from mcp import Client, MCPError
with needs("anyio", "MCP servers"):  # it and the others come with mcp
    import anyio
    import mcp_types
    from anyio.from_thread import BlockingPortal, start_blocking_portal
    from mcp.client.streamable_http import streamable_http_client

    from embedllm.integrations.mcp.http import http_client
    from embedllm.integrations.mcp.results import cut_text, result_text
    from embedllm.integrations.mcp.stdio import StderrTail, stdio_transport

if TYPE_CHECKING:
    from embedllm.types import JSON

_log = logging.getLogger("embedllm.integrations.mcp")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_NAME_CHARS = 64  # as OpenAI's and Anthropic's clients allow
_DESCRIPTION_CHARS = 4096
_SCHEMA_CHARS = 32_768  # as JSON
_MAX_PAGES = 20
_MAX_TOOLS = 500  # of a server


class ToolError(EmbedError):
    """A tool of an MCP server failed: what it says, or why there is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """A tool as its server has it."""

    server: str
    tool: mcp_types.Tool


@dataclass(slots=True, kw_only=True)
class _Connection:
    """An open server."""

    configuration: ServerConfiguration
    stderr: StderrTail
    ready: Future[list[mcp_types.Tool]] = field(default_factory=Future)
    client: Client | None = None
    closing: anyio.Event | None = None
    ended: Future[None] | None = None


class McpServers:
    """MCP servers, opened as a context manager (`with` or `async with`); their `tools` are for run_tools().

    servers: a path of a JSON file {"mcpServers": {NAME: {...}}}, or such an object of names: {"command", "args", "env",
    "cwd"} starts a process, {"url", "headers"} is streamable HTTP. timeout_s: of one call. start_timeout_s: until all
    servers have listed their tools. max_result_chars: of what a call gives; the rest is cut. max_message_bytes: a
    longer message ends the connection. Thread-safe.
    Opening raises EmbedError, naming the server that failed, OSError for the file, ValueError for what it says.
    """

    def __init__(
        self,
        servers: str | os.PathLike[str] | Mapping[str, JSON],
        *,
        timeout_s: float = 60.0,
        start_timeout_s: float = 60.0,
        max_result_chars: int = 16_000,
        max_message_bytes: int = 16 << 20,
    ) -> None:
        if not (timeout_s > 0 and start_timeout_s > 0 and max_result_chars > 0 and max_message_bytes > 0):
            raise ValueError("timeout_s, start_timeout_s, max_result_chars and max_message_bytes have to be above 0.")
        self._configurations = parse_servers(servers) if isinstance(servers, Mapping) else read_servers(servers)
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._max_result_chars, self._max_message_bytes = max_result_chars, max_message_bytes
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._connections: dict[str, _Connection] = {}
        self._tools: dict[str, _Listed] = {}

    @property
    def tools(self) -> list[FunctionTool]:
        """The tools of all servers. A name that several servers have begins with the server's: "files_read"."""
        return [self._function_tool(name, listed) for name, listed in self._tools.items()]

    @property
    def names(self) -> list[str]:
        """The names of `tools`."""
        return list(self._tools)

    @property
    def tools_by_server(self) -> dict[str, dict[str, FunctionTool]]:
        """The same tools by the names of their servers, and by their own: for `tool_servers` of embedllm.server."""
        tools: dict[str, dict[str, FunctionTool]] = {server: {} for server in self._configurations}
        for name, listed in self._tools.items():
            tools[listed.server][name] = self._function_tool(name, listed)
        return tools

    def server_of(self, name: str) -> str:
        """The server of a tool in `tools`. Raises KeyError for another name."""
        return self._tools[name].server

    def __enter__(self) -> Self:
        if self._portal is not None:
            raise ValueError("these MCP servers are open already.")
        try:
            self._portal = self._stack.enter_context(start_blocking_portal(name="embedllm-mcp"))
            self._open(self._portal)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await run_in_thread(lambda _: self.__enter__())

    async def __aexit__(self, *_: object) -> None:
        await run_in_thread(lambda _: self.close())

    def close(self) -> None:
        """Ends the connections, and the processes that were started. Calls under way raise ToolError."""
        portal, self._portal = self._portal, None
        try:
            for connection in self._connections.values():
                if portal is not None and connection.closing is not None:
                    portal.call(connection.closing.set)
            for connection in self._connections.values():
                if connection.ended is not None and connection.closing is None:  # it is still being opened
                    connection.ended.cancel()
            for connection in self._connections.values():
                if connection.ended is not None:
                    connection.ended.exception() if not connection.ended.cancelled() else None
        finally:
            self._connections.clear()
            self._tools.clear()
            self._stack.close()

    def _open(self, portal: BlockingPortal) -> None:
        for name, configuration in self._configurations.items():
            connection = self._connections[name] = _Connection(configuration=configuration, stderr=StderrTail())
            connection.ended = portal.start_task_soon(self._hold, connection)
        listed: list[_Listed] = []
        for name, connection in self._connections.items():
            try:
                tools = connection.ready.result()
            except Exception as error:
                raise EmbedError(f"the MCP server '{name}' cannot be used: {_reason(error, connection)}.") from error
            listed += [_Listed(server=name, tool=tool) for tool in _usable(name, tools)]
        self._tools = _named(listed)

    async def _hold(self, connection: _Connection) -> None:
        """Opens one server, and holds it in this task until it is to be closed."""
        error: BaseException | None = None
        scope = anyio.CancelScope(deadline=anyio.current_time() + self._start_timeout_s)
        try:
            with scope:
                async with self._client(connection) as client:
                    tools = await _list_tools(client)
                    scope.deadline = math.inf
                    connection.client, connection.closing = client, anyio.Event()
                    connection.ready.set_result(tools)
                    await connection.closing.wait()
                    connection.client = None
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception):
                raise
        finally:
            if not connection.ready.done():
                late = TimeoutError(f"it did not list its tools within {self._start_timeout_s:g} s")
                connection.ready.set_exception(late if error is None else _first(error))

    @asynccontextmanager
    async def _client(self, connection: _Connection) -> AsyncIterator[Client]:
        server, most = connection.configuration, self._max_message_bytes
        # `cache`: the tools are listed once
        if server.command:
            transport = stdio_transport(server, connection.stderr, most)
            async with Client(transport, cache=None) as client:
                yield client
        else:
            async with http_client(server.headers, self._timeout_s + 5.0, most) as http:
                transport = streamable_http_client(server.url, http_client=http, max_sse_event_size=most)
                async with Client(transport, cache=None) as client:
                    yield client

    def _function_tool(self, name: str, listed: _Listed) -> FunctionTool:
        def run(arguments: Mapping[str, JSON], cancel: Cancel) -> str:
            future = self._start(listed, arguments)
            with cancel.watching(lambda stop: _stop(future) if stop else None):
                try:
                    return future.result()
                except CancelledError as error:
                    raise ToolError("the call was cancelled.") from error
                except BaseException:  # Ctrl-C in this thread
                    future.cancel()
                    raise

        async def arun(arguments: Mapping[str, JSON], cancel: Cancel) -> str:
            future = self._start(listed, arguments)
            with cancel.watching(lambda stop: _stop(future) if stop else None):
                try:
                    return await asyncio.wrap_future(future)
                except asyncio.CancelledError as error:
                    if cancel.cancelled:
                        raise ToolError("the call was cancelled.") from error
                    raise

        return FunctionTool(schema=_schema(name, listed.tool), run=run, arun=arun)

    def _start(self, listed: _Listed, arguments: Mapping[str, JSON]) -> Future[str]:
        if self._portal is None:
            raise ToolError("the MCP servers are closed.")
        return self._portal.start_task_soon(self._call, listed, arguments)

    async def _call(self, listed: _Listed, arguments: Mapping[str, JSON]) -> str:
        connection, name = self._connections[listed.server], listed.tool.name
        client = connection.client
        if client is None:
            raise ToolError(f"the MCP server '{listed.server}' is closed.")
        try:
            with anyio.fail_after(self._timeout_s):
                result = await client.call_tool(name, cast("dict[str, object]", _clean(arguments)))
        except TimeoutError:
            raise ToolError(f"'{listed.server}' gave no answer within {self._timeout_s:g} s.") from None
        except Exception as error:
            reason = cut_text(_reason(error, connection), self._max_result_chars)
            raise ToolError(f"'{listed.server}': {reason}") from error
        text = result_text(result, self._max_result_chars)
        if result.is_error:
            raise ToolError(text)
        return text


async def _list_tools(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) > _MAX_TOOLS:
            break
    else:
        _log.warning("an MCP server lists its tools in more than %d pages; the rest is left out", _MAX_PAGES)
    return tools


def _usable(server: str, tools: Sequence[mcp_types.Tool]) -> list[mcp_types.Tool]:
    """The tools that can be called; a warning for each of the others."""
    tools_by_name: dict[str, mcp_types.Tool] = {}
    if len(tools) > _MAX_TOOLS:
        _log.warning("the MCP server '%s' lists %d tools; those after %d are left out", server, len(tools), _MAX_TOOLS)
    for tool in tools[:_MAX_TOOLS]:
        try:
            if tool.name in tools_by_name:
                raise ValueError("another one has its name")
            if (size := len(json.dumps(tool.input_schema))) > _SCHEMA_CHARS:
                raise ValueError(f"its schema has {size} characters, expected {_SCHEMA_CHARS} at most")
        except ValueError as error:
            _log.warning("the MCP server '%s': its tool %.100r is left out: %.500s", server, tool.name, error)
        else:
            tools_by_name[tool.name] = tool
    return list(tools_by_name.values())


def _named(listed: Sequence[_Listed]) -> dict[str, _Listed]:
    """The tools by names of their own, which every template and grammar takes."""
    plain = [_NOT_A_NAME.sub("_", one.tool.name)[:_NAME_CHARS] or "_" for one in listed]
    tools_by_name: dict[str, _Listed] = {}
    for name, one in zip(plain, listed, strict=True):
        whole = name if plain.count(name) == 1 else _NOT_A_NAME.sub("_", f"{one.server}_{name}")[:_NAME_CHARS]
        number = 2
        unique = whole
        while unique in tools_by_name or (unique != name and unique in plain):
            unique = f"{whole[: _NAME_CHARS - 4]}_{number}"
            number += 1
        tools_by_name[unique] = one
    return tools_by_name


def _schema(name: str, tool: mcp_types.Tool) -> dict[str, JSON]:
    description = cut_text(replace_surrogates(tool.description or tool.title or ""), _DESCRIPTION_CHARS)
    parameters = cast("JSON", _clean(tool.input_schema))
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _clean(value: object) -> object:
    """JSON without lone surrogates, which no message can hold."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, Mapping):
        return {replace_surrogates(str(key)): _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return value


def _stop(call: Future[str]) -> None:
    call.cancel()


def _first(error: BaseException) -> Exception:
    """The first error of a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else CancelledError()


def _reason(error: Exception, connection: _Connection) -> str:
    """In words, with what a server said last on stderr where its connection has ended."""
    first = _first(error)
    message = " ".join(replace_surrogates(str(first)).split()).rstrip(".") or type(first).__name__
    has_ended = isinstance(first, MCPError) and first.code == mcp_types.CONNECTION_CLOSED
    if isinstance(first, FileNotFoundError):
        return f"there is no command '{connection.configuration.command}'"
    last = replace_surrogates(connection.stderr.last_line)
    return f"{message}; it said last: {last[:500].rstrip('.')}" if has_ended and last else message
