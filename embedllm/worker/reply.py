"""What `embedllm worker` tells of a reply: its pieces as they come, and the whole of it at the end."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedllm.generation.completion import Completion
    from embedllm.generation.generation import Chunk

_COUNTS = ("prompt_tokens", "cached_tokens", "tokens", "drafted_tokens", "accepted_tokens")
_SECONDS = ("prefill_s", "decode_s")


def piece(chunk: Chunk) -> dict[str, object] | None:
    """What a step brought; None when that is nothing yet."""
    if not (chunk.text or chunk.reasoning or chunk.tool_calls):
        return None
    said: dict[str, object] = {"text": chunk.text}
    if chunk.reasoning:
        said["reasoning"] = chunk.reasoning
    if chunk.tool_calls:
        said["tool_calls"] = [asdict(call) for call in chunk.tool_calls]
    return said


def whole(reply: Completion | None, device: str | None) -> dict[str, object]:
    """The result. reply: None when it was cancelled before its turn came."""
    costs = reply and reply.statistics
    return {
        "text": reply.text if reply else "",
        "reasoning": reply.reasoning if reply else "",
        "tool_calls": [asdict(call) for call in reply.tool_calls] if reply else [],
        "message": reply.message if reply else None,
        "finish_reason": reply.finish_reason if reply else "cancelled",
        "stopped_by": reply and reply.stopped_by,
        **{name: getattr(costs, name) if costs else 0 for name in _COUNTS},
        **{name: getattr(costs, name) if costs else 0.0 for name in _SECONDS},
        "device": device,
    }
