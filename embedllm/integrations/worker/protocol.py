"""The messages of `embedllm worker`: JSON-RPC 2.0, one object a line, and what each error is called."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from embedllm.errors import (
    ContextFull,
    DeviceError,
    DeviceUnavailable,
    EmbedError,
    PackageError,
    TemplateError,
)
from embedllm.openai.schema import InvalidRequest

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk
    from embedllm.generation.completion import Completion
    from embedllm.text.chat_template import JSON

Id: TypeAlias = "int | str"

MESSAGE_LIMIT = 8 << 20  # bytes of one line; a context of 128,000 tokens is about half a megabyte of text
_PIECE = 1 << 16
_START = 256  # bytes in which a message's id stands, as clients write it
_ID_AT_START = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?(?:0|[1-9][0-9]{0,17})|"[\w.:-]*")\s*,'
)
_HALF = "found half of a surrogate pair (\\ud800 to \\udfff); expected both halves. Don't cut a text between them."

# JSON-RPC's own
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
FAILED = -32000  # any other error of the library or the system
NO_MODEL, BUSY, TOO_LARGE = -32010, -32011, -32012
CANCELLED = -32800  # as the Language Server Protocol has it

_CODES: tuple[tuple[type[Exception], int], ...] = (  # the first that fits
    (PackageError, -32001),
    (DeviceUnavailable, -32002),
    (DeviceError, -32003),
    (ContextFull, -32004),
    (TemplateError, -32005),
    (EmbedError, FAILED),
    (OSError, FAILED),
    (ValueError, INVALID_PARAMS),
)
EXPECTED_ERRORS = (EmbedError, OSError, ValueError)


class RpcError(Exception):
    """An answer that is an error.

    id: of the request that it answers; None where that could not be read.
    """

    def __init__(
        self, code: int, message: str, *, data: Mapping[str, JSON] | None = None, id: Id | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.data = data
        self.id = id


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, or a notification when it has no id."""

    method: str
    params: Mapping[str, JSON]
    id: Id | None


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A line that was longer than the limit."""

    start: bytes

    @property
    def error(self) -> RpcError:
        """The answer to it."""
        message = f"found a message of more than {MESSAGE_LIMIT} bytes; it was skipped. Send shorter texts."
        return RpcError(TOO_LARGE, message, id=_id_at_start(self.start))


def lines(read: Callable[[int], bytes], limit: int = MESSAGE_LIMIT) -> Iterator[bytes | SkippedLine]:
    """The lines of a stream, without their ends; of one longer than `limit` only the start is kept.

    read: gives at most that many bytes, and none at the end. What stands there without a line end is a line too.
    """
    line, skipped = bytearray(), None
    for piece in iter(lambda: read(_PIECE), b""):
        for place, part in enumerate(piece.split(b"\n")):
            if place > 0:  # a line end stood before this part
                yield skipped or bytes(line)
                line, skipped = bytearray(), None
            line += part
            if len(line) > limit:
                line, skipped = bytearray(), skipped or SkippedLine(bytes(line[:_START]))
    if line or skipped:
        yield skipped or bytes(line)


def parse(line: bytes) -> Call:
    """The call that a line holds. Raises RpcError, with the id where it could be read."""
    message = _loaded(line)
    if isinstance(message, list):
        raise RpcError(INVALID_REQUEST, "found a batch (an array); expected one object a line. Send its calls singly.")
    if not isinstance(message, dict):
        raise RpcError(
            INVALID_REQUEST, f"found {kind_of(message)}; expected a JSON object with 'jsonrpc' and 'method'."
        )
    id = _id(message)
    if "id" in message and id is None:
        raise RpcError(INVALID_REQUEST, f"'id' is {kind_of(message['id'])}; expected a whole number or a text.")
    if message.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, "'jsonrpc' is not \"2.0\", the only version that is spoken here.", id=id)
    method, params = message.get("method"), message.get("params")
    if params is None:
        params = {}
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, f"'method' is {kind_of(method)}; expected a text.", id=id)
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, f"'params' is {kind_of(params)}; expected an object with named values.", id=id)
    return Call(method=method, params=params, id=id)


def encode(message: Mapping[str, object]) -> bytes:
    """A message as it is sent. ASCII, so that no host can misread it by the wrong code page."""
    return json.dumps({"jsonrpc": "2.0", **message}, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def error_message(error: Exception, id: Id | None = None) -> dict[str, object]:
    """The answer that tells of an error, with its code."""
    rpc = error if isinstance(error, RpcError) else _as_rpc(error)
    body: dict[str, object] = {"code": rpc.code, "message": str(rpc)}
    if rpc.data:
        body["data"] = dict(rpc.data)
    return {"id": rpc.id if id is None else id, "error": body}


def _as_rpc(error: Exception) -> RpcError:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL_ERROR)
    data: dict[str, JSON] = {"kind": type(error).__name__}
    if isinstance(error, DeviceUnavailable):
        data["tried"] = [
            {"device": device, "reason": reason, "remedy": remedy} for device, reason, remedy in error.tried
        ]
    if isinstance(error, InvalidRequest) and error.param is not None:
        data["param"] = error.param
    if isinstance(error, ContextFull):
        data |= {"tokens": error.tokens, "limit": error.limit}
    return RpcError(code, str(error) or type(error).__name__, data=data)


def _loaded(line: bytes) -> object:
    """What a line says. A fault that sits in a value leaves the rest readable, so that the error can name the id."""
    numbers = _Numbers()
    try:
        text = line.decode("utf-8-sig")  # some hosts' writers begin with a byte order mark
        message = json.loads(text, parse_constant=numbers.refuse, parse_int=numbers.whole)
        faults = numbers.faults + ([_HALF] if "\\u" in text and _has_half_a_pair(message) else [])
    except UnicodeDecodeError as error:
        raise RpcError(PARSE_ERROR, f"found bytes that are no UTF-8 ({error.reason} at byte {error.start}).") from None
    except RecursionError:
        message = "found JSON that is nested too deeply; expected a few levels."
        raise RpcError(PARSE_ERROR, message, id=_id_at_start(line)) from None
    except ValueError as error:
        raise RpcError(PARSE_ERROR, f"found no JSON ({error}); expected one JSON object a line.") from None
    if faults:
        raise RpcError(PARSE_ERROR, faults[0], id=_id(message) if isinstance(message, dict) else None)
    return message


class _Numbers:
    """Reads a message's numbers; one that can't be read is None, and a fault."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def refuse(self, name: str) -> None:
        self.faults.append(f"found {name}, which is no JSON number; expected a finite one, or null.")

    def whole(self, digits: str) -> int | None:
        try:
            return int(digits)
        except ValueError:  # Python reads no more than some thousands of digits
            self.faults.append(f"found a number of {len(digits)} digits; expected one of 64 bits.")
            return None


def _has_half_a_pair(value: object) -> bool:
    """Whether a text in it has half a surrogate pair, which is no character; tokenizers can't take it."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _id(message: Mapping[str, object]) -> Id | None:
    """A request's id, where it has one that may be sent back."""
    id = message.get("id")
    if isinstance(id, bool) or not isinstance(id, int | str) or _has_half_a_pair(id):
        return None
    return id


def _id_at_start(line: bytes) -> Id | None:
    """The id of a message that is not read as a whole, so that the host's request does not wait for ever."""
    found = _ID_AT_START.match(line)
    return json.loads(found[1]) if found else None


def kind_of(value: object) -> str:
    """A JSON value's kind, in words."""
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "missing or null"}
    return names.get(type(value), "a number")


_COUNTS = ("prompt_tokens", "cached_tokens", "tokens", "drafted_tokens", "accepted_tokens")
_SECONDS = ("prefill_s", "decode_s")


def piece(chunk: Chunk) -> dict[str, object] | None:
    """What a step brought; None when that is nothing yet."""
    if not (chunk.text or chunk.reasoning or chunk.tool_calls or chunk.call_deltas):
        return None
    fields: dict[str, object] = {"text": chunk.text}
    if chunk.reasoning:
        fields["reasoning"] = chunk.reasoning
    if chunk.tool_calls:
        fields["tool_calls"] = [asdict(call) for call in chunk.tool_calls]
    if chunk.call_deltas:
        fields["call_deltas"] = [asdict(delta) for delta in chunk.call_deltas]
    return fields


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
