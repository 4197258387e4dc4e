"""Checks that sessions of every runtime make, with the errors that users read."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from embedllm.backends.base import Device
from embedllm.backends.images import FIRST_ID, IMAGE_IS_GONE, TAKES_NO_IMAGES
from embedllm.errors import ContextFull, DeviceUnavailable

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.package.lora.adapter import Adapter


def cannot_run(device: Device, reason: str, remedy: str) -> DeviceUnavailable:
    """The error of a device that does not suit a model. remedy: what helps; empty where nothing does."""
    said = f"{reason}; {remedy}" if remedy else reason
    return DeviceUnavailable(f"'{device.name}' cannot run this model: {said}.", [(device.name, reason, remedy)])


def check_tokens(
    tokens: Sequence[int],
    position: int,
    *,
    vocabulary: int,
    limit: int,
    remedy: str,
    images: Container[int] | None = None,
) -> None:
    """What every session asks of a feed: raises ValueError for no token or a wrong one, ContextFull past the limit.

    remedy: what to do about a full context besides a shorter prompt. images: ids of images that may be fed, too.
    """
    if len(tokens) == 0:
        raise ValueError("feed needs at least one token")
    try:
        first, last = operator.index(min(tokens)), operator.index(max(tokens))
    except (TypeError, ValueError) as error:  # ValueError: rows of an array have no order
        raise ValueError(f"feed takes token ids in one list, found {reprlib.repr(tokens)}.") from error
    if first < 0 or last >= vocabulary:
        for token in tokens:
            if 0 <= token < vocabulary or (images is not None and token in images):
                continue
            if token >= FIRST_ID:
                raise ValueError(IMAGE_IS_GONE if images is not None else TAKES_NO_IMAGES)
            raise ValueError(f"token id {token} is outside the vocabulary of {vocabulary}.")
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


def check_rewind(position: int, length: int) -> None:
    """Raises ValueError for a position that was not reached."""
    if not 0 <= position <= length:
        raise ValueError(f"cannot rewind to {position}; the session holds {length} tokens.")


def check_span(start: int, stop: int, length: int) -> None:
    """Raises ValueError for tokens that are not held."""
    if not 0 <= start <= stop <= length:
        raise ValueError(f"there are no tokens {start} to {stop}; the session holds {length}.")


def check_state(state: KeyValues, shapes: Sequence[tuple[int, int] | tuple[int, int, int]], *, dtype: str = "") -> int:
    """How many tokens a state has. ValueError when it is not of this model.

    shapes: by layer, kv heads and head size, of keys and of values where they differ. dtype: of a quantized KV, by
    NumPy's name; empty: floats of any size.
    """
    kinds = {array.dtype.name if array.dtype.kind != "f" else "" for pair in state for array in pair}
    if kinds and kinds != {dtype}:
        named = {"": "floats"}
        raise ValueError(
            f"this state holds {' and '.join(sorted(named.get(kind, kind) for kind in kinds))}, and this "
            f"session {named.get(dtype, dtype)}. Load both models with the same kv, or feed the tokens again."
        )
    counts = {array.shape[1] for pair in state for array in pair if array.ndim == 3}
    sizes = [[(array.shape[0], array.shape[-1]) for array in pair] for pair in state]
    if len(counts) != 1 or sizes != [[(shape[0], shape[1]), (shape[0], shape[-1])] for shape in shapes]:
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
