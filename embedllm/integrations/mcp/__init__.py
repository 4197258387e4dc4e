"""The Model Context Protocol: tools of MCP servers for a model, and a model's own calls as an MCP server.

from embedllm.integrations.mcp import McpServers

with McpServers({"files": {"command": "mcp-server-files", "args": ["."]}}) as servers:
    print(embedllm.run_tools(llm, question, servers.tools).text)

Needs the package mcp: pip install 'embedllm[mcp]'.
"""

from embedllm.integrations.mcp.client import McpServers as McpServers
from embedllm.integrations.mcp.client import ToolError as ToolError
