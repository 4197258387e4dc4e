"""What the tool loop gives: the outcome of each call, the end of the loop, or a run that waits for approval."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from embedllm.text.chat_template import Message
from embedllm.tools.arguments import check_arguments
from embedllm.tools.calls import Parameters, ToolCall, new_id

if TYPE_CHECKING:
    from embedllm.generation.completion import Completion
    from embedllm.text.chat_template import JSON

Decision: TypeAlias = "bool | str | Mapping[str, JSON]"

_VERSION = 1
DECLINED = "error: the user declined the call."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """A tool call and its result."""

    call: ToolCall
    """What the model called."""
    ran: bool
    """Whether it ran to its end; otherwise `result` says what was wrong."""
    result: str
    """What the tool gave, as text, or an error's text; the model reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedRun:
    """A tool loop that waits for approval; run_tools() resumes it, in another process too.

    Of the reply that it stopped at no call has run. It is plain data: whoever can change its JSON decides what runs.
    """

    messages: tuple[Message, ...]
    """All that was said: the question with what came before it, and last the reply with the calls."""
    new: int
    """How many of the messages, at the end, this run has added."""
    calls: tuple[ToolCall, ...]
    """The calls of the last reply. Each has an id of its own."""
    pending: tuple[ToolCall, ...]
    """Those of them that wait for approval."""
    outcomes: tuple[ToolOutcome, ...]
    """The calls of the replies before, all of which are done."""
    rounds: int
    """How many replies with calls were run."""

    def to_json(self) -> str:
        """All of it as JSON text, which from_json() reads."""
        values = {
            "version": _VERSION,
            "messages": self.messages,
            "new": self.new,
            "calls": [asdict(call) for call in self.calls],
            "pending": [call.id for call in self.pending],
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "rounds": self.rounds,
        }
        return json.dumps(values, allow_nan=False, default=dict)  # of other mappings, which messages may be

    @classmethod
    def from_json(cls, text: str) -> PausedRun:
        """What to_json() wrote. Raises ValueError for any other text."""
        try:
            values = json.loads(text)
            version = values["version"] if isinstance(values, dict) else None
            if version != _VERSION:
                raise ValueError(f"its version is {version!r}, expected {_VERSION}")
            return _checked(values)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"this text is not from PausedRun.to_json(): {problem}.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """The end of such a loop."""

    completion: Completion
    """The last one; it has tool calls when the rounds were used up or it paused, and these were not run."""
    messages: tuple[Message, ...]
    """What to append to the messages; a Conversation has it."""
    outcomes: tuple[ToolOutcome, ...]
    """Every call, in turn."""
    paused: PausedRun | None = None
    """What to resume, where calls wait for approval."""

    @property
    def text(self) -> str:
        """The text of the last reply."""
        return self.completion.text


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedCall:
    """A call of a paused run and what was decided of it."""

    call: ToolCall
    """With the arguments that it shall run with."""
    is_approved: bool = False
    """Whether it runs without being asked for again."""
    refusal: str = ""
    """What the model reads in place of a result; "" where the call may run."""


def with_own_ids(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls with new ids where a model wrote one twice: one decision must not go for two calls."""
    ids: set[str] = set()
    own_calls: list[ToolCall] = []
    for call in calls:
        own_calls.append(replace(call, id=new_id()) if call.id in ids else call)
        ids.add(call.id)
    return tuple(own_calls)


def decided_calls(paused: PausedRun, decisions: Mapping[str, Decision], parameters: Parameters) -> list[DecidedCall]:
    """Each call of the last reply with its decision.

    Raises ValueError for a decision that is missing or of no call that waits, and for edited arguments that the tool's
    schema does not allow.
    """
    pending = {call.id: call for call in paused.pending}
    if missing := [f"'{name}' ({call})" for name, call in pending.items() if name not in decisions]:
        raise ValueError(f"there is no decision for the call {missing[0]}; give decisions={{id: True or False}}.")
    if unknown := [name for name in decisions if name not in pending]:
        raise ValueError(f"decisions has {unknown[0]!r}; the calls that wait are {', '.join(map(repr, pending))}.")
    return [_decided(call, decisions.get(call.id), parameters) for call in paused.calls]


def _decided(call: ToolCall, decision: Decision | None, parameters: Parameters) -> DecidedCall:
    if decision is None:
        return DecidedCall(call=call)
    if decision is True:
        return DecidedCall(call=call, is_approved=True)
    if decision is False:
        return DecidedCall(call=call, refusal=DECLINED)
    if isinstance(decision, str):
        return DecidedCall(call=call, refusal=f"{DECLINED[:-1]}: {decision}")
    if not isinstance(decision, Mapping):
        raise ValueError(
            f"the decision for '{call.id}' is {decision!r}; expected True, False, a text that says why not, or the "
            "arguments to run it with."
        )
    if call.name not in parameters:
        raise ValueError(f"the call '{call.id}' is of the tool '{call.name}', which is not among the tools given.")
    try:
        check_arguments(decision, parameters[call.name])
    except ValueError as error:
        raise ValueError(f"the decision for '{call.id}' ({call.name}): {error}") from error
    return DecidedCall(call=replace(call, arguments=dict(decision)), is_approved=True)


def _checked(values: dict[str, Any]) -> PausedRun:
    """Raises ValueError, TypeError or KeyError for anything else than to_json() writes."""
    calls = tuple(_call(each) for each in values["calls"])
    ids = [call.id for call in calls]
    messages, new, rounds = values["messages"], values["new"], values["rounds"]
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        raise ValueError("its messages are no list of messages")
    if not (type(new) is int and 1 <= new <= len(messages) and type(rounds) is int and rounds >= 0):
        raise ValueError(f"of {len(messages)} messages {new!r} are new, in round {rounds!r}")
    if len(set(ids)) < len(ids) or not values["pending"] or not set(values["pending"]) <= set(ids):
        raise ValueError(f"its calls are {ids}, and {values['pending']} wait")
    if [each["id"] for each in messages[-1].get("tool_calls", [])] != ids:
        raise ValueError("its last message has other calls")
    outcomes = [{**each, "call": _call(each["call"])} for each in values["outcomes"]]
    return PausedRun(
        messages=tuple(cast("list[Message]", messages)),
        new=new,
        calls=calls,
        pending=tuple(call for call in calls if call.id in values["pending"]),
        outcomes=tuple(ToolOutcome(**each) for each in outcomes),
        rounds=rounds,
    )


def _call(values: dict[str, Any]) -> ToolCall:
    call = ToolCall(**values)
    if not isinstance(call.arguments, dict) or not all(
        isinstance(each, str) for each in (call.id, call.name, call.problem, call.text)
    ):
        raise ValueError(f"a call is {values}")
    return call
