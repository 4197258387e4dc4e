"""A saved conversation: the messages, readable without the KV, and the KV cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from embedllm.backends.base import Interrupted
from embedllm.cancel import Cancel
from embedllm.errors import ContextFull, PackageError
from embedllm.generation.options import WhenFull
from embedllm.kv_cache.block_cache import slice_state
from embedllm.kv_cache.fingerprint import kv_fingerprint
from embedllm.kv_cache.kv_file import PieceReader, StateFile, open_state, write_state
from embedllm.kv_cache.recurrent_prefix import MOST_STATES, CachedPrefix, as_kv, from_kv, movable
from embedllm.kv_cache.sequence_handle import SequenceHandle
from embedllm.kv_cache.transfer import TRANSFER_TOKENS, CachedSpan, exported, kv_mover
from embedllm.text.chat_template import Message, Tool, tool_schemas

if TYPE_CHECKING:
    from embedllm.backends.base import KeepsStates, KeyValues
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

    sequence: whose KV goes along, if it can give it: of a recurrent model up to the last position whose states are
    kept, with those of some before. model: what that is of. Raises OSError; ValueError for messages that JSON cannot
    hold; Interrupted when it is cancelled.
    """
    tools = None if saved.tools is None else tool_schemas(saved.tools)
    values = {field.name: getattr(saved, field.name) for field in fields(saved)} | {"tools": tools}
    try:
        about = {"conversation": json.dumps(values), "model": json.dumps(model), "kind": "", "tokens": "[]"}
    except TypeError as error:
        raise ValueError(f"the conversation cannot be saved: {error}; JSON has to hold its messages.") from error
    tokens = [] if sequence is None else list(sequence.reusable_tokens)
    kept: dict[int, KeyValues] = {}
    if sequence is not None and (recurrent := movable(sequence.session)) is not None:
        kept = sequence.loop.call(partial(_kept_states, recurrent, len(tokens)))
        del tokens[max(kept, default=0) :]
    if sequence is None or (mover := kv_mover(sequence.session)) is None or not tokens:
        write_state(path, about, [])
        return
    adapter = sequence.adapter
    kind = sequence.loop.call(lambda: kv_fingerprint(model, mover, adapter))
    about |= {"kind": json.dumps(kind), "tokens": json.dumps(tokens)}
    write_state(path, about, _pieces(sequence, len(tokens), cancel), kept)


def _kept_states(session: KeepsStates, count: int) -> dict[int, KeyValues]:
    """Some of those that are kept within the first `count` tokens, by their positions."""
    from embedllm.backends.sessions.kv_arrays import on_host  # numpy

    positions = session.worth_keeping([at for at in session.kept() if at <= count], 0, MOST_STATES)
    return {at: on_host(as_kv(session.export_states(at), session.state_shapes)) for at in positions}


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
    in_loop, session = sequence.loop.call, kv_mover(sequence.session)
    kind = _kind(file)
    adapter = adapters.computed(kind.get("adapter")) if adapters is not None else None
    if session is None or kind != in_loop(lambda: kv_fingerprint(model, session, adapter)):
        _log.info(
            "the KV in '%s' is of another model, adapter, device or version; the next turn computes it again", file.path
        )
        return False
    try:
        if adapter is not None:
            in_loop(lambda: sequence.adapt(adapter))
        if (recurrent := movable(sequence.session)) is not None:
            with file.opened() as reader:
                for prefix in _prefixes(file, reader, recurrent, cancel):
                    in_loop(partial(sequence.restore_prefix, tokens, prefix))
                    if len(sequence.tokens) < prefix.stop:
                        raise PackageError(f"'{file.path}' holds states of another model.")
            return True
        for state in file.read():
            if cancel.cancelled:
                raise Interrupted
            in_loop(partial(sequence.append, tokens, state))
    except (PackageError, OSError, ValueError, ContextFull) as error:
        _log.info("the next turn computes the KV again from token %d on: %s", len(sequence.tokens), error)
    return True


def _prefixes(file: StateFile, reader: PieceReader, session: KeepsStates, cancel: Cancel) -> Iterator[CachedPrefix]:
    """The KV of a file from one position to the next whose states it has, with these."""

    def read(piece: int, start: int, stop: int) -> KeyValues:
        if cancel.cancelled:
            raise Interrupted
        return slice_state(reader.piece(piece), start - piece, stop - piece)

    for start, stop in pairwise((0, *file.kept)):
        pieces = [(at, max(at, start), min(after, stop)) for at, after in pairwise((*file.starts, len(file.tokens)))]
        spans = [CachedSpan(start=first, stop=last, read=partial(read, piece, first, last))
                 for piece, first, last in pieces if first < last]  # fmt: skip
        yield CachedPrefix(start=start, stop=stop, spans=spans,
                           states=lambda at=stop: from_kv(reader.states(at), session.state_shapes))  # fmt: skip


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

    mover = kv_mover(sequence.session)
    if sequence.is_ended or mover is None:
        raise ValueError("this model was closed")
    return on_host(exported(mover, start, stop))
