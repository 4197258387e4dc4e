"""Requests of agents, turn by turn: made by hand in the shapes that they send, and recorded (record.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What an agent sent in one conversation."""

    client: str  # its package and version
    path: str
    headers: dict[str, str]
    items: str  # "messages" or "input", of the bodies
    bodies: list[dict[str, Any]]


def recording(name: str) -> Recording:
    """Of "claude_code" or "codex"."""
    found = json.loads((_FOLDER / f"{name}_recorded.json").read_text(encoding="utf-8"))
    items, bodies = found["items"], [found["body"]]
    for turn in found["turns"]:
        before = bodies[-1]
        bodies.append({**before, **turn["changed"], items: [*before[items][: turn["same"]], *turn["more"]]})
    return Recording(client=found["client"], path=found["path"], headers=found["headers"], items=items, bodies=bodies)


def claude_code() -> list[dict[str, Any]]:
    """The bodies of one conversation by /v1/messages; the billing header changes with each, as it does there."""
    found = json.loads((_FOLDER / "claude_code.json").read_text(encoding="utf-8"))
    bodies = [found["body"]]
    for place, turn in enumerate(found["turns"]):
        before = bodies[-1]
        more = [{"role": "assistant", "content": turn["assistant"]}, {"role": "user", "content": turn["user"]}]
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.0; cch={place + 10}"}
        bodies.append({**before, "messages": [*before["messages"], *more], "system": [billing, *before["system"][1:]]})
    return bodies


def codex() -> list[dict[str, Any]]:
    """The bodies of one conversation by /v1/responses, whose state the client keeps."""
    found = json.loads((_FOLDER / "codex.json").read_text(encoding="utf-8"))
    bodies = [found["body"]]
    for turn in found["turns"]:
        bodies.append({**bodies[-1], "input": [*bodies[-1]["input"], *turn]})
    return bodies
