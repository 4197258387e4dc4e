"""Context policies: what a model sees of a history that exceeds the context (Conversation's when_full).

The history itself stays whole. Standard library only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from embedllm.errors import ContextFull
from embedllm.generation.request import Request
from embedllm.kv_cache.block_cache import common_prefix
from embedllm.kv_cache.context_shift import SINK, ContextShift
from embedllm.text.chat_template import Message
from embedllm.text.prompt import SYSTEM_ROLES, role_of

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder

_REPLY = 4  # the part of the context that is free for a reply of any length: a quarter
_REST = 4  # free besides after turns were dropped, so that not every turn drops some


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleHistory:
    """The part of a history that the model sees."""

    first: Message | None = None  # begins the oldest turn that is seen; None: it is the first one
    dropped_tokens: int = 0


WHOLE_HISTORY = VisibleHistory()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """A history with the new message, and functions that build a request from a part of it."""

    messages: Sequence[Message]
    request: Callable[[Sequence[Message]], Request]  # not checked yet
    tokens: Callable[[Sequence[Message]], Sequence[int]]  # its prompt alone
    context: int

    @property
    def turns(self) -> list[int]:
        """Where each turn begins. What comes before the first one, the system message, is part of all that is seen."""
        lead = 0
        while lead < len(self.messages) and role_of(self.messages[lead]) in SYSTEM_ROLES:
            lead += 1
        users = [at for at in range(lead, len(self.messages)) if role_of(self.messages[at]) == "user"]
        return users if users[:1] == [lead] or lead == len(self.messages) else [lead, *users]

    def shown(self, start: int) -> list[Message]:
        """The system message and all from a message on."""
        return [*self.messages[: self.turns[0]], *self.messages[start:]] if self.turns else list(self.messages)


def drop_oldest(turn: PendingTurn, visible_history: VisibleHistory) -> tuple[Request, VisibleHistory]:
    """Drops whole turns, the oldest ones, when prompt and reply would not fit; the last one is never dropped."""
    turns = turn.turns
    places = [place for place, at in enumerate(turns) if turn.messages[at] is visible_history.first]
    begin, visible_history = (places[0], visible_history) if places else (0, WHOLE_HISTORY)
    request = turn.request(turn.shown(turns[begin]) if turns else turn.messages)
    reply_tokens = turn.context // _REPLY if request.max_tokens is None else request.max_tokens
    limit = turn.context - min(reply_tokens, turn.context // 2)
    if len(request.prompt) <= limit or begin >= len(turns) - 1:
        return replace(request, dropped_tokens=visible_history.dropped_tokens), visible_history
    chosen = _first_that_fits(turn, range(begin + 1, len(turns)), limit)
    fitting_request = turn.request(turn.shown(turns[chosen]))
    dropped = visible_history.dropped_tokens + len(request.prompt) - len(fitting_request.prompt)
    visible_history = VisibleHistory(first=turn.messages[turns[chosen]], dropped_tokens=dropped)
    return replace(fitting_request, dropped_tokens=dropped), visible_history


def _first_that_fits(turn: PendingTurn, places: range, limit: int) -> int:
    """The oldest turn from which on all fits, with some room where that can be had; the last one when nothing does."""
    counts: dict[int, int] = {}

    def count(place: int) -> int:
        if place not in counts:
            counts[place] = len(turn.tokens(turn.shown(turn.turns[place])))
        return counts[place]

    for most in (limit - turn.context // _REST, limit):
        index = bisect_left(places, True, key=lambda place: count(place) <= most)
        if index < len(places):
            return places[index]
    return places[-1]


def shift_context(
    turn: PendingTurn, visible_history: VisibleHistory, kv_tokens: Sequence[int], decoder: Decoder
) -> tuple[Request, VisibleHistory]:
    """Leaves out tokens behind the system message when all does not fit, and has more dropped on the way.

    kv_tokens: the tokens whose KV there is, after the shifts so far. Raises ContextFull when nothing can be dropped.
    """
    turns = turn.turns
    request = turn.request(turn.messages)
    prompt = request.prompt
    system = list(turn.messages[: turns[0]] if turns else turn.messages)
    prefix = common_prefix(prompt, turn.tokens([*system, {"role": "user", "content": "\N{HORIZONTAL ELLIPSIS}"}]))
    shift = ContextShift(keep=max(SINK, prefix), context=turn.context, ropes=decoder.layer_ropes)
    if shift.keep > turn.context // 2:
        raise ContextFull(
            f"the system message and the tools take {shift.keep} tokens, and 'shift' keeps them; "
            f"{turn.context // 2} of {turn.context} can be kept. Shorten them.",
            tokens=shift.keep,
            limit=turn.context // 2,
        )
    dropped, tokens = visible_history.dropped_tokens, list(prompt)
    if dropped:
        tokens[shift.keep : shift.keep + dropped] = []
    if dropped and common_prefix(tokens, kv_tokens) <= shift.keep:
        # the history, or what the template makes of it, is another now
        dropped, tokens = 0, list(prompt)
    if len(tokens) >= turn.context:
        last = turn.request(turn.shown(turns[-1])) if turns else request
        if len(last.prompt) >= turn.context:
            return last, visible_history  # for the check to refuse
        # nothing to go on from: no need to compute what would be dropped
        if common_prefix(tokens, kv_tokens) <= shift.keep:
            dropped = min(len(tokens) - turn.context + shift.step, len(tokens) - len(last.prompt))
            tokens[shift.keep : shift.keep + dropped] = []
    visible_history = VisibleHistory(dropped_tokens=dropped)
    return replace(request, prompt=tokens, shift=shift, dropped_tokens=dropped), visible_history
