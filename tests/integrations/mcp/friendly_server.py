"""An MCP server for the tests, by the package mcp: over HTTP where a port is given, else over stdio."""

from __future__ import annotations

import asyncio
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent, TextResourceContents

server = MCPServer("friendly")
cancelled: list[float] = []


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail(reason: str) -> str:
    """Fails."""
    raise ToolError(reason)


@server.tool()
async def wait(seconds: float) -> str:
    """Waits."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append(seconds)
        raise
    return "awake"


@server.tool(structured_output=False)
def show() -> CallToolResult:
    """All kinds of content."""
    return CallToolResult(content=[
        TextContent(text="text"),
        ImageContent(data="AAAA", mime_type="image/png"),
        ResourceLink(uri="file:///a.txt", name="a", mime_type="text/plain"),
        EmbeddedResource(resource=TextResourceContents(uri="file:///b.txt", text="inside")),
    ])  # fmt: skip


@server.tool()
def cancels() -> int:
    """How many calls were cancelled."""
    return len(cancelled)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
