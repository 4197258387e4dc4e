"""A saved conversation: the messages, readable without the KV, and the KV cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from embedllm.backends.base import Interrupted, MovesState
from embedllm.cancel import Cancel
from embedllm.errors import ContextFull, PackageError
from embedllm.generation.options import WhenFull
from embedllm.kv_cache.fingerprint import kv_fingerprint
from embedllm.kv_cache.kv_file import StateFile, open_state, write_state
from embedllm.kv_cache.sequence_handle import SequenceHandle
from embedllm.kv_cache.transfer import TRANSFER_TOKENS, exported
from embedllm.text.chat_template import Message, Tool, tool_schemas

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.kv_cache.sequence import CachedSequence
    from embedllm.kv_cache.sequence_pool import SequencePool
    from embedllm.package.lora.adapter import Adapters
    from embedllm.text.chat_template import JSON

_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedConversation:
    """The messages and the template variables; tools as JSON schemas."""

    messages: Sequence[Message]
    tools: Sequence[Tool] | None
    variables: Mapping[str, JSON] | None
    when_full: WhenFull = "error"
    first_seen: int | None = None  # the message with which begins what the model sees; None: the first
    dropped_tokens: int = 0  # before it
    adapter: str | None = None  # its name


def write_conversation(
    path: Path,
    saved: SavedConversation,
    *,
    sequence: CachedSequence | None,
    model: Mapping[str, str],
    cancel: Cancel,
) -> None:
    """Writes a file, or replaces it, whole or not at all.

    sequence: whose KV goes along, if it can give it. model: what that is of. Raises OSError; ValueError for messages
    that JSON cannot hold; Interrupted when it is cancelled.
    """
    tools = None if saved.tools is None else tool_schemas(saved.tools)
    values = {field.name: getattr(saved, field.name) for field in fields(saved)} | {"tools": tools}
    try:
        about = {"conversation": json.dumps(values), "model": json.dumps(model), "kind": "", "tokens": "[]"}
    except TypeError as error:
        raise ValueError(f"the conversation cannot be saved: {error}; JSON has to hold its messages.") from error
    if sequence is None or not isinstance(sequence.session, MovesState) or not sequence.reusable_tokens:
        write_state(path, about, [])
        return
    tokens = list(sequence.reusable_tokens)
    session, adapter = sequence.session, sequence.adapter
    kind = sequence.loop.call(lambda: kv_fingerprint(model, session, adapter))
    about |= {"kind": json.dumps(kind), "tokens": json.dumps(tokens)}
    write_state(path, about, _pieces(sequence, len(tokens), cancel))


def read_conversation(path: Path) -> tuple[SavedConversation, StateFile]:
    """Raises PackageError for what is no saved conversation or damaged, FileNotFoundError for what is not there."""
    path.stat()
    file = open_state(path)
    try:
        saved = SavedConversation(**json.loads(file.about["conversation"]))
        _check(saved)
        return saved, file
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise PackageError(f"'{path}' holds no conversation ({error}); expected one that save() wrote.") from error


def _check(saved: SavedConversation) -> None:
    """Raises ValueError for values of another kind than save() writes."""
    messages, tools, first = saved.messages, saved.tools, saved.first_seen
    if not _are_objects(messages):
        raise ValueError("its messages are no list of objects")
    if tools is not None and not _are_objects(tools):
        raise ValueError("its tools are no list of JSON schemas")
    if not isinstance(saved.variables, dict | None):
        raise ValueError(f"its variables are a {type(saved.variables).__name__}")
    if saved.when_full not in get_args(WhenFull):
        raise ValueError(f"when_full is {saved.when_full!r}")
    if first is not None and (type(first) is not int or not 0 <= first < len(messages)):
        raise ValueError(f"first_seen is {first!r} of {len(messages)} messages")
    if type(saved.dropped_tokens) is not int or saved.dropped_tokens < 0:
        raise ValueError(f"dropped_tokens is {saved.dropped_tokens!r}")
    if not isinstance(saved.adapter, str | None):
        raise ValueError(f"adapter is {saved.adapter!r}")


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def restore_sequence(
    file: StateFile,
    sequences: SequencePool,
    *,
    model: Mapping[str, str],
    adapters: Adapters | None = None,
    cancel: Cancel,
) -> SequenceHandle | None:
    """A sequence that holds the KV of a file; None when another model, adapter, device or version has computed it.

    Of a damaged file it holds what comes before the damage. Raises Interrupted when it is cancelled.
    """
    tokens = file.tokens
    if not tokens:
        return None
    in_loop = sequences.loop.call
    handle = SequenceHandle(sequences, len(tokens))
    sequence = in_loop(handle.open)
    try:
        sequence.is_running = True  # so that nobody frees what it holds so far
        is_known = _restore(file, sequence, tokens, model=model, adapters=adapters, cancel=cancel)
    except BaseException:
        handle.close()
        raise
    finally:
        in_loop(partial(sequences.give_back, sequence, to_pool=False))
    if not is_known:
        handle.close()
        return None
    return handle


def _restore(
    file: StateFile,
    sequence: CachedSequence,
    tokens: Sequence[int],
    *,
    model: Mapping[str, str],
    adapters: Adapters | None,
    cancel: Cancel,
) -> bool:
    """Appends the KV of a file; False: it is of another model, adapter, device or version."""
    in_loop, session = sequence.loop.call, sequence.session
    kind = _kind(file)
    adapter = adapters.computed(kind.get("adapter")) if adapters is not None else None
    if not isinstance(session, MovesState) or kind != in_loop(lambda: kv_fingerprint(model, session, adapter)):
        _log.info(
            "the KV in '%s' is of another model, adapter, device or version; the next turn computes it again", file.path
        )
        return False
    try:
        if adapter is not None:
            in_loop(lambda: sequence.adapt(adapter))
        for state in file.read():
            if cancel.cancelled:
                raise Interrupted
            in_loop(partial(sequence.append, tokens, state))
    except (PackageError, OSError, ValueError, ContextFull) as error:
        _log.info("the next turn computes the KV again from token %d on: %s", len(sequence.tokens), error)
    return True


def _kind(file: StateFile) -> dict[str, str]:
    """What the KV of a file is of; a kind that cannot be read is no model's."""
    try:
        kind = json.loads(file.about.get("kind", "{}"))
    except (ValueError, RecursionError):
        return {}
    is_kind = isinstance(kind, dict) and all(isinstance(value, str) for value in kind.values())
    return kind if is_kind else {}


def _pieces(sequence: CachedSequence, count: int, cancel: Cancel) -> Iterator[KeyValues]:
    for start in range(0, count, TRANSFER_TOKENS):
        if cancel.cancelled:
            raise Interrupted
        yield sequence.loop.call(partial(_exported, sequence, start, min(start + TRANSFER_TOKENS, count)))


def _exported(sequence: CachedSequence, start: int, stop: int) -> KeyValues:
    from embedllm.backends.sessions.kv_arrays import on_host  # numpy

    if sequence.is_ended or not isinstance(sequence.session, MovesState):
        raise ValueError("this model was closed")
    return on_host(exported(sequence.session, start, stop))
