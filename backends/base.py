"""What a backend is: protocols of an engine and a session, and the checks that all sessions make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from embedllm.errors import ContextFull, DeviceUnavailable
from embedllm.types import Logits

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from embedllm.adapters.adapter import Adapter
    from embedllm.types import F32

    Cached: TypeAlias = np.floating | np.integer  # integers: a quantized KV
    # by layer: keys, as they are after norm and rotation, and values; [kv heads, T, D] each
    KeyValues: TypeAlias = list[tuple[NDArray[Cached], NDArray[Cached]]]
    Span: TypeAlias = tuple[int, int]  # tokens: the first, and the one behind the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Something that can run a model, or a reason why it can't."""

    name: str  # what a caller asks for: "cpu", "cuda", "reference"
    backend: str  # "onnxruntime 1.31.1"
    description: str  # the hardware, in words
    available: bool
    reason: str = ""  # why not
    remedy: str = ""  # what to install or do
    memory: int = 0  # bytes of its own; 0: the machine's, or not told


class Interrupted(Exception):
    """A feed was stopped from outside; the session stands where it stood before that feed."""


def cannot_run(device: Device, lack: str, remedy: str) -> DeviceUnavailable:
    """The error of a device that does not suit a model."""
    return DeviceUnavailable(f"'{device.name}' cannot run this model: {lack}.", [(device.name, lack, remedy)])


def check_tokens(tokens: Sequence[int], position: int, *, vocabulary: int, limit: int, remedy: str) -> None:
    """What every session asks of a feed: raises ValueError for no token or a wrong one, ContextFull past the limit.

    remedy: what to do about a full context besides a shorter prompt.
    """
    if not tokens:
        raise ValueError("feed needs at least one token")
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise ValueError(f"token id {wrong} is outside the vocabulary of {vocabulary}.")
    check_room(position, len(tokens), limit=limit, remedy=remedy)


def check_room(position: int, count: int, *, limit: int, remedy: str) -> None:
    """Raises ContextFull when that many more tokens do not fit."""
    if position + count > limit:
        raise ContextFull(
            f"{position} tokens are held and {count} more were given; {limit} can be held. "
            f"Shorten the prompt, or {remedy}.",
            tokens=position + count,
            limit=limit,
        )


def check_rewind(position: int, held: int) -> None:
    """Raises ValueError for a position that was not reached."""
    if not 0 <= position <= held:
        raise ValueError(f"cannot rewind to {position}; the session holds {held} tokens.")


def check_span(start: int, stop: int, held: int) -> None:
    """Raises ValueError for tokens that are not held."""
    if not 0 <= start <= stop <= held:
        raise ValueError(f"there are no tokens {start} to {stop}; the session holds {held}.")


def check_state(state: KeyValues, shapes: Sequence[tuple[int, int]], *, dtype: str = "") -> int:
    """How many tokens a state has. ValueError when it is not of this model.

    shapes: by layer, kv heads and head size. dtype: of a quantized KV, by NumPy's name; empty: floats of any size.
    """
    kinds = {array.dtype.name if array.dtype.kind != "f" else "" for pair in state for array in pair}
    if kinds and kinds != {dtype}:
        named = {"": "floats"}
        raise ValueError(
            f"this state holds {' and '.join(sorted(named.get(kind, kind) for kind in kinds))}, and this "
            f"session {named.get(dtype, dtype)}. Load both models with the same kv, or feed the tokens again."
        )
    counts = {array.shape[1] for pair in state for array in pair if array.ndim == 3}
    found = [{(array.shape[0], array.shape[-1]) for array in pair} for pair in state]
    if len(counts) != 1 or found != [{shape} for shape in shapes]:
        raise ValueError("this state is of another model: its layers, heads or sizes differ.")
    return counts.pop()


def check_change(adapter: Adapter | None, position: int, *, can: bool) -> None:
    """What every session asks of another adapter: raises ValueError when it holds tokens, or was not opened for any.

    can: whether it was.
    """
    if adapter is not None and not can:
        raise ValueError("this engine was opened without adapters; load the model with adapters={} to choose some.")
    if position:
        raise ValueError(f"the session holds {position} tokens of another adapter; rewind it to 0 before.")


LARGER_EXPORT = "export with a larger --context"  # the remedy where the package is the limit
LARGER_MODEL = "take a model that holds more"  # the same where another exporter wrote it


class Session(Protocol):
    """One sequence on one device: its KV cache and how far it has come."""

    position: int  # tokens held

    @property
    def capacity(self) -> int:
        """Most tokens it can hold without taking more memory; grows in steps up to the context."""
        ...

    def feed(self, tokens: Sequence[int]) -> Logits:
        """Append at least one token; the logits after the last of them, valid until the next feed.

        Raises ContextFull when they don't fit (nothing is appended), ValueError for an id outside the vocabulary,
        Interrupted.
        """
        ...

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on; ValueError unless 0 <= position <= self.position."""
        ...

    def close(self) -> None:
        """Give the memory back. Closing twice is fine."""
        ...


@runtime_checkable
class FeedsAll(Protocol):
    """A session that can give the logits after every token that it is fed."""

    def feed_all(self, tokens: Sequence[int]) -> F32:
        """As feed; returns [T, V]."""
        ...


@runtime_checkable
class FeedsAsync(Protocol):
    """A session whose feed is awaited, where there are no threads: in a browser."""

    async def afeed(self, tokens: Sequence[int]) -> Logits:
        """As feed, without blocking the event loop.

        When the task is cancelled meanwhile, the feed is stopped and its end awaited before CancelledError goes on. The
        session stands where it stood before that feed.
        """
        ...


@runtime_checkable
class MovesState(Protocol):
    """A session whose KV can be taken out and put into another one, of this or another backend."""

    def export_state(self, start: int, stop: int) -> KeyValues:
        """Copies of the keys and values of the tokens from `start` to before `stop`.

        ValueError unless 0 <= start <= stop <= self.position.
        """
        ...

    def import_state(self, state: KeyValues) -> None:
        """Appends tokens that another session has computed.

        Raises ContextFull when they don't fit (nothing is appended), ValueError for the state of another model.
        """
        ...


@runtime_checkable
class MovesStored(Protocol):
    """A session whose KV can be taken out as it is stored, which is less work, and often less memory, than floats.

    Other sessions of the same engine take it by import_state, and hold what this one holds then, bit for bit.
    """

    def export_stored(self, spans: Sequence[Span]) -> list[KeyValues]:
        """Copies of the KV of the tokens of each span, each in memory of its own.

        [kv heads, tokens, size] as export_state gives it; dtype and size are those of what is stored.
        ValueError as export_state.
        """
        ...


@runtime_checkable
class Forgets(Protocol):
    """A session that frees the KV that its layers' windows no longer see.

    It can be rewound only to where all that they saw then is kept, and gives only KV away that is kept in all layers;
    else ValueError.
    """

    keeps_all: bool  # True: nothing more is freed

    def whole(self) -> int:
        """How many tokens at the beginning have all of their KV."""
        ...

    def back(self, position: int) -> int:
        """The last position at or before this one that it can be rewound to."""
        ...


@runtime_checkable
class TakesAdapters(Protocol):
    """A session that computes with a low-rank adapter, where its engine was opened for that."""

    def adapt(self, adapter: Adapter | None) -> None:
        """Compute with this one from the next feed on; None: with the bare model.

        ValueError when tokens are held, or when the engine was not opened for adapters.
        """
        ...


@runtime_checkable
class Interruptible(Protocol):
    """A session whose running feed can be stopped from another thread."""

    def interrupt(self, stop: bool = True) -> None:
        """Make the running feed and every later one raise Interrupted, until interrupt(False)."""
        ...


PRIORITY_S = 10.0  # a step of priority is worth so many seconds of waiting: nobody waits for ever


@runtime_checkable
class Prioritized(Protocol):
    """A session that may have to wait for others."""

    priority: int  # lower ones are fed earlier


@runtime_checkable
class FeedsTogether(Protocol):
    """An engine that makes one run of what several threads feed to its sessions."""

    @property
    def parallel(self) -> int:
        """How many sessions are best fed at once."""
        ...


class Engine(Protocol):
    """A loaded model on one device; opens sessions that share its weights."""

    device: Device
    chunk: int  # how many tokens of a prompt are best fed at once
    context: int  # most tokens that a session can hold
    remedy: str  # what gives more of them: "export with a larger --context"

    def open(self, capacity: int = 0) -> Session:
        """A new session with room for at least `capacity` tokens."""
        ...

    def close(self) -> None:
        """Free the weights. Its sessions must be closed before."""
        ...


def best_parallel(engine: Engine) -> int:
    """How many sessions of an engine are best fed at once."""
    return engine.parallel if isinstance(engine, FeedsTogether) else 1
