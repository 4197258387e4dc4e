"""OpenAI's shapes as the JSON that clients get: with the nulls that they look for, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from embedllm.server.endpoint import event

if TYPE_CHECKING:
    from embedllm.openai import types
    from embedllm.server.errors import ApiError
    from embedllm.types import JSON

DONE = b"data: [DONE]\n\n"


def completion(reply: types.ChatCompletion) -> dict[str, JSON]:
    """A whole reply. A message has "content" even where it is null, and other fields only with something in them."""
    fields = reply.to_dict()
    for choice in cast("list[dict[str, dict[str, JSON]]]", fields["choices"]):
        message = choice["message"]
        choice["message"] = {
            name: value for name, value in message.items() if value is not None or name in ("content", "refusal")
        }
    return fields


def chunk(piece: types.ChatCompletionChunk, *, has_usage: bool) -> dict[str, JSON]:
    """A piece of a reply. A delta has only what is new; "usage" is in all pieces or in none."""
    choices: list[JSON] = []
    for choice in piece.choices:
        logprobs = None if choice.logprobs is None else choice.logprobs.to_dict()
        delta = choice.delta.to_dict(exclude_none=True)
        choices.append(
            {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": choice.finish_reason}
        )
    fields: dict[str, JSON] = {"id": piece.id, "object": piece.object, "created": piece.created, "model": piece.model,
                               "system_fingerprint": None, "choices": choices}  # fmt: skip
    if has_usage:
        fields["usage"] = None if piece.usage is None else piece.usage.to_dict()
    return fields


def stream_error(error: ApiError) -> bytes:
    """The end of a stream that fails."""
    return event(error.body("openai", "")) + DONE
