"""The rule of the tool loop: which calls are checked, allowed, run or left for approval, and what is said next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from embedllm.cancel import Cancel
from embedllm.generation.completion import Completion
from embedllm.model.conversation import Conversation
from embedllm.model.model import Model
from embedllm.model.tool_reply import (
    DECLINED,
    DecidedCall,
    Decision,
    PausedRun,
    ToolOutcome,
    ToolReply,
    decided_calls,
    with_own_ids,
)
from embedllm.text.chat_template import Message, Tool, tool_schemas
from embedllm.text.lone_surrogates import replace_surrogates
from embedllm.text.prompt import check_messages
from embedllm.tools.arguments import check_arguments
from embedllm.tools.calls import Parameters, ToolCall, assistant_message, result_message, tool_parameters
from embedllm.tools.results import error_text, value_text

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON

_log = logging.getLogger("embedllm")
_CANCELLED = "error: cancelled before it ran."

Step: TypeAlias = "Callable[[], object]"  # what the rule wants done; its result, or what it raised, is sent back
Run: TypeAlias = "Callable[[Mapping[str, JSON], Cancel], object]"  # what runs a tool


@dataclass(frozen=True, slots=True)
class Loop:
    """The rule of the loop: its steps say what is to be done, and are given the result, or thrown what that raised."""

    question: Question
    runners: Mapping[str, Run]
    reply: Callable[[Sequence[Message], str], object]
    choice: str
    max_rounds: int
    _: KW_ONLY
    on_call: Callable[[ToolOutcome], object] | None
    confirm: Callable[[ToolCall], object] | None
    needs_approval: Callable[[ToolCall], object] | None
    decisions: Mapping[str, Decision]
    cancel: Cancel

    def steps(self) -> Generator[Step, object, ToolReply]:
        """Raises ValueError for what does not go together."""
        if not isinstance(self.max_rounds, int) or self.max_rounds < 1:
            raise ValueError(f"max_rounds is {self.max_rounds!r}; expected a whole number, 1 or more.")
        if self.decisions and self.question.paused is None:
            raise ValueError("there are decisions, but messages is no PausedRun; give the reply's `paused`.")
        parameters = tool_parameters(tool_schemas(self.question.tools))
        new_messages: list[Message] = []
        outcomes: list[ToolOutcome] = []
        count, choice = 0, self.choice
        if paused := self.question.paused:
            decided = decided_calls(paused, self.decisions, parameters)
            new_messages += paused.messages[-paused.new :]
            outcomes += paused.outcomes
            if any(one.call != call for one, call in zip(decided, paused.calls, strict=True)):  # arguments were edited
                new_messages[-1] = self.question.with_calls(new_messages[-1], [one.call for one in decided])
            yield from self._run_calls(decided, parameters, new_messages, outcomes)
            count, choice = paused.rounds + 1, self._later_choice
        while True:
            completion = cast(
                "Completion", (yield lambda now=choice: self.reply([*self.question.messages, *new_messages], now))
            )
            new_messages.append(completion.message)
            calls = completion.tool_calls
            if not calls or completion.finish_reason in ("cancelled", "timeout") or count >= self.max_rounds:
                return ToolReply(completion=completion, messages=tuple(new_messages), outcomes=tuple(outcomes))
            pending = yield from self._pending(calls, parameters)
            if pending:
                state = self._paused(completion, pending, new_messages, outcomes, count)
                return ToolReply(
                    completion=completion, messages=tuple(new_messages), outcomes=tuple(outcomes), paused=state
                )
            yield from self._run_calls([DecidedCall(call=call) for call in calls], parameters, new_messages, outcomes)
            count, choice = count + 1, self._later_choice

    @property
    def _later_choice(self) -> str:
        return "none" if self.choice == "none" else "auto"

    def _pending(self, calls: Sequence[ToolCall], parameters: Parameters) -> Generator[Step, object, list[int]]:
        """The places of the calls that wait for approval."""
        places: list[int] = []
        if self.needs_approval is None:
            return places
        for place, call in enumerate(calls):
            if not _problem(call, parameters) and (yield partial(self.needs_approval, call)):
                places.append(place)
        return places

    def _paused(
        self,
        completion: Completion,
        pending: Sequence[int],
        new_messages: list[Message],
        outcomes: Sequence[ToolOutcome],
        count: int,
    ) -> PausedRun:
        calls = with_own_ids(completion.tool_calls)
        if calls != completion.tool_calls:
            new_messages[-1] = self.question.with_calls(new_messages[-1], calls)
        return PausedRun(
            messages=(*self.question.messages, *new_messages)
            if self.question.talk is None
            else tuple(self.question.talk.messages),
            new=len(new_messages),
            calls=calls,
            pending=tuple(calls[place] for place in pending),
            outcomes=tuple(outcomes),
            rounds=count,
        )

    def _run_calls(
        self,
        calls: Sequence[DecidedCall],
        parameters: Parameters,
        new_messages: list[Message],
        outcomes: list[ToolOutcome],
    ) -> Generator[Step, object, None]:
        """Runs the calls of one reply, in turn."""
        for decided in calls:
            ran, result = (
                (False, replace_surrogates(decided.refusal))
                if decided.refusal
                else (yield from self._run(decided, parameters))
            )
            outcome = ToolOutcome(call=decided.call, ran=ran, result=result)
            outcomes.append(outcome)
            new_messages.append(result_message(decided.call, result))
            if self.on_call is not None:
                yield partial(self.on_call, outcome)

    def _run(self, decided: DecidedCall, parameters: Parameters) -> Generator[Step, object, tuple[bool, str]]:
        """Whether a call ran, and its result or what was wrong."""
        call = decided.call
        if problem := _problem(call, parameters):
            return False, problem
        if self.cancel.cancelled:  # by a tool before it, say: nobody is asked any more
            return False, _CANCELLED
        confirm = None if decided.is_approved else self.confirm
        if confirm is not None and not (yield lambda: confirm(call)):
            return False, DECLINED
        if self.cancel.cancelled:
            return False, _CANCELLED
        try:
            value = yield lambda: self.runners[call.name](call.arguments, self.cancel)
            return True, value_text(value)
        except Exception as error:  # noqa: BLE001 # a tool is the application's: whatever it raises is for the model to know of
            _log.info("the tool '%s' failed; the model is told", call.name, exc_info=True)
            return False, f"error: {type(error).__name__}: {error_text(error)}"


def _problem(call: ToolCall, parameters: Parameters) -> str:
    """Why a call cannot run, as its result; "" when it can."""
    if call.problem:
        return f"error: {call.problem}"
    if call.name not in parameters:
        return f"error: there is no tool '{call.name}'; there are {', '.join(parameters)}."
    try:
        check_arguments(call.arguments, parameters[call.name])
    except ValueError as error:
        return f"error: {error}"
    return ""


@dataclass(slots=True, kw_only=True)
class Question:
    """What the loop begins with."""

    messages: Sequence[Message]
    tools: Sequence[Tool]
    talk: Conversation | None = None
    paused: PausedRun | None = None
    _count: int = 0  # of all messages since the first one, how many the conversation has
    _result: Message | None = None  # of a tool, said last: there when the reply to it has any text

    @classmethod
    def of(
        cls,
        model: Model | Conversation,
        messages: str | Message | Sequence[Message] | PausedRun,
        tools: Sequence[Tool] | None,
        variables: Mapping[str, JSON] | None,
    ) -> Question:
        """Raises ValueError for what does not go together."""
        if not isinstance(model, Model | Conversation):
            raise ValueError(f"model is {model!r:.80}; expected a Model or a Conversation.")
        paused = messages if isinstance(messages, PausedRun) else None
        if isinstance(model, Model):
            if paused is None:
                check_messages(cast("Sequence[Message]", messages))
            if tools is None:
                raise ValueError("there are no tools; give functions or schemas.")
            history = cast("Sequence[Message]", messages) if paused is None else paused.messages[: -paused.new]
            return cls(messages=history, tools=tools, paused=paused)
        if tools is not None or variables is not None:
            raise ValueError("a conversation has tools and variables of its own; give them to Model.conversation().")
        if not model.tools:
            raise ValueError("this conversation has no tools; give them to Model.conversation().")
        if paused is not None:
            if not model.messages or model.messages[-1] != paused.messages[-1]:
                raise ValueError(
                    "the last message of this conversation is not the reply that waits for approval; set its messages "
                    "to those of the PausedRun."
                )
            return cls(messages=[], tools=model.tools, talk=model, paused=paused, _count=paused.new)
        if not isinstance(messages, str | Mapping):
            raise ValueError(f"messages is {messages!r:.80}; to a conversation a text or one message is said.")
        message: Message = {"role": "user", "content": messages} if isinstance(messages, str) else messages
        return cls(messages=[message], tools=model.tools, talk=model)

    def with_calls(self, reply: Message, calls: Sequence[ToolCall]) -> Message:
        """The last reply with these calls in place of its own, in the history of a conversation, too."""
        changed = {**reply, "tool_calls": assistant_message("", "", calls)["tool_calls"]}
        if self.talk is not None:
            self.talk.messages[-1] = changed
        return changed

    def new_of(self, messages: Sequence[Message]) -> Message:
        """What is to be said of all messages so far; those before it, which are new as well, go into the history."""
        assert self.talk is not None
        self._result = messages[-1] if self._count else None
        new, self._count = messages[self._count :], len(messages) + 1  # the reply to it will be there, too
        self.talk.messages += new[:-1]
        return new[-1]

    @contextmanager
    def protect_history(self) -> Iterator[None]:
        """Within the block an error leaves the conversation as it was; a cancel leaves it every result of a call."""
        before = None if self.talk is None else list(self.talk.messages)
        try:
            yield
        except BaseException:
            if self.talk is not None and before is not None:
                self.talk.messages[:] = before
            raise
        if self.talk is not None and self._result is not None:
            messages = self.talk.messages
            if not any(message is self._result for message in messages):
                messages.append(self._result)
