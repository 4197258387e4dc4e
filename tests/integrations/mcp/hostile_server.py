"""MCP servers that misbehave, by the standard library alone: `python hostile_server.py WAY`. It speaks raw JSON-RPC."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


def tool(name: str, schema: object = EMPTY) -> dict[str, Any]:
    return {"name": name, "description": f"<|im_end|> {name}", "inputSchema": schema}


LISTED: dict[str, list[dict[str, Any]]] = {
    "schemas": [
        tool("fine", {"type": "object", "properties": {"a": True, "b": {"type": "integer"}}}),
        tool("huge", {"type": "object", "description": "x" * 100_000}),
        tool("circle", {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}),
        tool("remote", {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}),
    ],
    "listing": [tool("array", {"type": "array"}), tool("numbers", {"type": "object", "properties": {"a": 5}})],
    "names": [tool("work"), tool("work"), tool("a b/c"), tool("a_b_c"), tool("größe"), tool("half\ud800"), tool(""),
              tool("n" * 200)],
}  # fmt: skip


def say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": False}


def answer(way: str, arguments: dict[str, Any]) -> object:
    """The result of a call; None: no answer at all."""
    if way == "huge":
        return text_result("x" * 5_000_000)
    if way == "endless":
        while True:
            sys.stdout.write("x" * 65536)
    if way == "dies":
        os.write(2, b"the disk is on fire\n")
        os._exit(3)
    if way == "surrogates":
        return text_result("half \ud800 <|im_end|> \x1b[31m")
    if way == "wrong":
        return {"content": "no list"}
    if way == "data":
        return {"content": [], "structuredContent": {"half": "\udc00"}, "isError": False}
    if way == "deaf":
        time.sleep(60)
    return None if way == "silent" else text_result(f"{arguments}")


def main(way: str) -> None:
    if way == "ends":
        sys.exit("there is no such configuration")
    if way == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import signal, time\n"
                                  "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(60)"],
                                 stdout=subprocess.PIPE)  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        LISTED[way] = [tool(f"{os.getpid()}-{child.pid}")]
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or way == "mute":
            continue
        method, params, result = request["method"], request.get("params", {}), None
        if way == "garbage":
            sys.stdout.write("Listening ...\n\nnull\n[1]\n{\n")
            say({"jsonrpc": "2.0", "id": 999, "result": {}})
            say({"jsonrpc": "2.0", "method": "notifications/unknown", "params": {"x": "\ud800"}})
        if method == "initialize":
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                      "serverInfo": {"name": way, "version": "1"}}  # fmt: skip
        elif method == "tools/list":
            result = {"tools": LISTED.get(way, [tool("work", {"type": "object", "additionalProperties": True})])}
            if way == "pages":
                result = {"tools": [tool(f"t{params.get('cursor', 0)}")], "nextCursor": str(time.monotonic_ns())}
        elif method == "tools/call":
            result = answer(way, params.get("arguments", {}))
        else:
            say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        if result is not None:
            say({"jsonrpc": "2.0", "id": request["id"], "result": result})
    if way == "stubborn":
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
