"""Records what an agent sends to a server whose model says given replies, as the files of this folder have it.

python -m tests.server.agents.record OUT.json REPLIES.json NAME PROJECT -- COMMAND...

REPLIES: a JSON list of what the model says, in turn. COMMAND: run in PROJECT; "{url}" is the address. Long texts are
replaced by their length, and paths and ids of the machine by others: the texts belong to the makers of the agents, and
requests are read by their shape. The first request is kept whole; of each later one, what differs from the one before.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.server.serving import serving
from tests.support.scripted import scripted

_SHORT = 80  # characters of a text that is kept
_HEADERS = ("user-agent", "anthropic-version", "anthropic-beta", "x-app", "originator", "accept")
_HEX = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32,}")
CONTEXT = 3_000_000  # characters


def shortened(value: Any, places: Mapping[str, str]) -> Any:  # noqa: ANN401  # JSON
    """Without long texts, paths and ids of a machine."""
    if isinstance(value, dict):
        return {key: shortened(item, places) for key, item in value.items()}
    if isinstance(value, list):
        return [shortened(item, places) for item in value]
    if not isinstance(value, str):
        return value
    for place, name in places.items():
        value = value.replace(place, name)
    value = _HEX.sub(lambda found: "0" * len(found[0]), value)
    return value if len(value) <= _SHORT else f"({len(value)} characters)"


def turns(bodies: list[dict[str, Any]], items: str) -> list[dict[str, Any]]:
    """Of each body after the first: how many of its items the one before has, the others, and changed values."""
    found = []
    for before, body in itertools.pairwise(bodies):
        same = 0
        while same < min(len(before[items]), len(body[items])) and before[items][same] == body[items][same]:
            same += 1
        changed = {name: value for name, value in body.items() if name != items and value != before.get(name)}
        found.append({"same": same, "more": body[items][same:], "changed": changed})
    return found


def _record(out: Path, replies: list[str], name: str, project: Path, command: list[str]) -> None:
    requests: list[dict[str, Any]] = []
    model, _ = scripted(*replies, context=CONTEXT)
    with serving(model=model) as served:

        class Recorder(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                upstream = HTTPConnection("127.0.0.1", served.port, timeout=60)
                upstream.request("POST", self.path, raw, {"content-type": "application/json"})
                response = upstream.getresponse()
                headers = {key.lower(): value for key, value in self.headers.items() if key.lower() in _HEADERS}
                requests.append({"path": self.path, "headers": headers, "body": json.loads(raw)})
                print(self.path, response.status, file=sys.stderr)  # noqa: T201
                self.send_response(response.status)
                self.send_header("content-type", response.headers["content-type"])
                self.end_headers()
                while piece := response.read1(65536):
                    self.wfile.write(piece)

        with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_address[1]}"
            subprocess.run([word.replace("{url}", url) for word in command], cwd=project, stdin=subprocess.DEVNULL,
                           check=True)  # fmt: skip
            server.shutdown()
    places = {str(project.resolve()): "/project", str(Path.home()): "/home/user"}
    first = requests[0]
    bodies = [shortened(one["body"], places) for one in requests if one["path"] == first["path"]]
    items = "messages" if "messages" in bodies[0] else "input"
    agent = first["headers"]["user-agent"].partition(" (")[0]  # without the machine
    found = {"client": name, "path": first["path"], "headers": {**first["headers"], "user-agent": agent},
             "items": items, "body": bodies[0], "turns": turns(bodies, items)}  # fmt: skip
    out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _out, _replies, _name, _project, _, *_command = sys.argv[1:]
    _record(Path(_out), json.loads(Path(_replies).read_text(encoding="utf-8")), _name, Path(_project), _command)
