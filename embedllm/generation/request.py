"""One generation to run, and the checks of what a caller has asked for."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import get_args

from embedllm.backends.base import ImageInput
from embedllm.errors import ContextFull
from embedllm.generation.options import Speculate
from embedllm.kv_cache.context_shift import ContextShift
from embedllm.package.lora.adapter import Adapter
from embedllm.sampling.constraint import Constraint
from embedllm.sampling.options import Sampling
from embedllm.text.stream import StopStrings
from embedllm.tools.calls import ReplyReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation to run."""

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int | None  # None: what is left of the context
    min_tokens: int = 0  # before which no stop token comes
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    top_count: int  # of the most probable tokens to report for each step
    special: bool = False  # special tokens are part of the text
    is_continuation: bool = False  # the text goes on from the prompt's
    mark_tokens: frozenset[int] = frozenset()  # special tokens that are, for the reader
    reader: ReplyReader | None = None  # of this one reply, where it is more than text
    constraint: Constraint | None = None  # of this one reply
    speculate: Speculate = "auto"
    shift: ContextShift | None = None  # what is dropped when the context is full; None: nothing, and the reply ends
    dropped_tokens: int = 0  # of a conversation, before this
    priority: int = 0  # lower ones are served earlier
    timeout_s: float = math.inf  # after which it ends with "timeout", in the queue too
    is_rejectable: bool = True  # by a full queue; False: part of a call that was begun
    adapter: Adapter | None = None
    images: tuple[ImageInput, ...] = ()  # of the prompt, which has their ids (embedllm/backends/images.py)


def reject_first_only(requests: Sequence[Request]) -> list[Request]:
    """The requests of one call: a full queue may reject only the first, so that a started batch is not lost."""
    return [*requests[:1], *(replace(request, is_rejectable=False) for request in requests[1:])]


def check_request(request: Request, *, context: int, remedy: str) -> None:
    """Raises ValueError for a request that makes no sense, ContextFull for one that leaves no room for a token.

    context: tokens that prompt and reply can have together. remedy: what gives more of them.
    """
    if not request.prompt:
        raise ValueError("the prompt is empty; give at least one token.")
    if request.shift is None and len(request.prompt) >= context:
        raise ContextFull(
            f"the prompt has {len(request.prompt)} tokens; {context} can be held together with the reply. "
            f"Shorten the prompt, or {remedy}.",
            tokens=len(request.prompt),
            limit=context,
        )
    most = request.max_tokens
    if most is not None and (not is_whole(most) or most < 1):
        raise _wrong("max_tokens", most, "a whole number, 1 or more, or None")
    if not is_whole(request.min_tokens) or not 0 <= request.min_tokens <= (most or context):
        raise _wrong("min_tokens", request.min_tokens, "a whole number, 0 to max_tokens")
    if not is_whole(request.top_count) or request.top_count < 0:
        raise _wrong("logprobs", request.top_count, "how many tokens to report, a whole number, 0 or more")
    if request.speculate not in (modes := get_args(Speculate)):
        raise _wrong("speculate", request.speculate, f"{', '.join(map(repr, modes))} or None")
    if not is_whole(request.priority):
        raise _wrong("priority", request.priority, "a whole number, lower for earlier")
    timeout_s = request.timeout_s
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real) or not timeout_s > 0:
        raise _wrong("timeout", timeout_s, "seconds, more than 0, or None")
    StopStrings(request.stop)


def is_whole(value: object) -> bool:
    """An int, or NumPy's."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _wrong(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name} is {reprlib.repr(value)}; expected {expected}.")
