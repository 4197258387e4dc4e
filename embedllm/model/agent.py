"""The tool loop (agent): calls are checked, allowed and run, and their results sent to the model, until it answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Unpack, cast

from embedllm.generation.completion import Completion, collect
from embedllm.generation.options import ReplyOptions, lists_options
from embedllm.model.conversation import Conversation
from embedllm.model.model import Model
from embedllm.sampling.options import Sampling
from embedllm.text.chat_template import Message, Tool, tool_schemas
from embedllm.text.prompt import check_messages
from embedllm.tools.arguments import check_arguments
from embedllm.tools.calls import ToolCall, result_message, tool_parameters
from embedllm.tools.tool_choice import choice_name

if TYPE_CHECKING:
    from embedllm.cancel import Cancel
    from embedllm.generation.chunk import Chunk
    from embedllm.text.chat_template import JSON

MOST_ROUNDS = 8
_CANCELLED = "error: cancelled before it ran."

_Step: TypeAlias = "Callable[[], object]"  # what the rule wants done; its result, or what it raised, is sent back


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
class ToolReply:
    """The end of such a loop."""

    completion: Completion
    """The last one; it has tool calls when the rounds were used up, and these were not run."""
    messages: tuple[Message, ...]
    """What to append to the messages; a Conversation has it."""
    outcomes: tuple[ToolOutcome, ...]
    """Every call, in turn."""

    @property
    def text(self) -> str:
        """The text of the last reply."""
        return self.completion.text


@lists_options(ReplyOptions)
def run_tools(
    model: Model | Conversation,
    messages: str | Message | Sequence[Message],
    tools: Sequence[Tool] | None = None,
    sampling: Sampling | None = None,
    *,
    functions: Mapping[str, Callable[..., object]] | None = None,
    max_rounds: int = MOST_ROUNDS,
    on_call: Callable[[ToolOutcome], object] | None = None,
    on_chunk: Callable[[Chunk], object] | None = None,
    confirm: Callable[[ToolCall], bool] | None = None,
    cancel: Cancel | None = None,
    variables: Mapping[str, JSON] | None = None,
    **options: Unpack[ReplyOptions],
) -> ToolReply:
    """The model's answer to a conversation, with the tools that it called on the way.

    model: or a Conversation, to which `messages` is then what is said, a text or a message; it has its own tools and
    variables, and its history gets all of it, or nothing when this fails.
    tools: functions, or JSON schemas whose functions `functions` has by name. max_rounds: replies with calls that are
    run; those of one more are not. on_call: called with each call. on_chunk: called with each chunk of each reply.
    confirm: asked before a tool runs; without it all run. A call that cannot be read, of no tool, with wrong arguments
    or refused, and a tool that raises, are sent to the model as the result. cancel: ends the reply that is
    coming, and no tool runs after it. options: as of Model.generate(); tool_choice goes for the first reply.
    Raises ValueError for a tool without a function, and for one that has to be awaited: arun_tools takes those.
    """
    asked, tell = Question.of(model, messages, tools, variables), _telling(on_chunk)
    known = _functions(asked.tools, functions)
    if awaited := [name for name, function in known.items() if inspect.iscoroutinefunction(function)]:
        raise ValueError(f"the tool '{awaited[0]}' has to be awaited; use arun_tools.")

    def reply(said: Sequence[Message], choice: str) -> Completion:
        now: ReplyOptions = {**options, "tool_choice": choice}
        if isinstance(model, Model):
            chunks = model.stream(said, sampling, cancel=cancel, tools=tools, variables=variables, **now)
        else:
            chunks = model.stream(asked.new_of(said), sampling, cancel=cancel, **now)
        with closing(chunks):  # when on_chunk raises: a conversation then takes back what it has of the reply
            return collect(map(tell, chunks))

    steps = _rounds(asked, known, reply, choice_name(options.get("tool_choice", "auto")), max_rounds, on_call, confirm,
                    cancel)  # fmt: skip
    with asked.kept():
        return _run_steps(steps)


def _run_steps(steps: Generator[_Step, object, ToolReply]) -> ToolReply:
    """Does what the rule says."""
    try:
        step = next(steps)
        while True:
            try:
                done = step()
            except Exception as error:  # noqa: BLE001 # the rule decides which of them the model receives
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        return end.value


@lists_options(ReplyOptions)
async def arun_tools(
    model: Model | Conversation,
    messages: str | Message | Sequence[Message],
    tools: Sequence[Tool] | None = None,
    sampling: Sampling | None = None,
    *,
    functions: Mapping[str, Callable[..., object]] | None = None,
    max_rounds: int = MOST_ROUNDS,
    on_call: Callable[[ToolOutcome], object] | None = None,
    on_chunk: Callable[[Chunk], object] | None = None,
    confirm: Callable[[ToolCall], bool | Awaitable[bool]] | None = None,
    cancel: Cancel | None = None,
    variables: Mapping[str, JSON] | None = None,
    **options: Unpack[ReplyOptions],
) -> ToolReply:
    """As run_tools(), without blocking the event loop while the model computes.

    Tools and `confirm` may be coroutine functions; others run in the event loop's thread.
    """

    asked, tell = Question.of(model, messages, tools, variables), _telling(on_chunk)

    async def reply(said: Sequence[Message], choice: str) -> Completion:
        now: ReplyOptions = {**options, "tool_choice": choice}
        if isinstance(model, Model):
            chunks = model.astream(said, sampling, cancel=cancel, tools=tools, variables=variables, **now)
        else:
            chunks = model.astream(asked.new_of(said), sampling, cancel=cancel, **now)
        async with aclosing(chunks):
            return collect([tell(chunk) async for chunk in chunks])

    known = _functions(asked.tools, functions)
    steps = _rounds(asked, known, reply, choice_name(options.get("tool_choice", "auto")), max_rounds, on_call, confirm,
                    cancel)  # fmt: skip
    with asked.kept():
        return await _arun_steps(steps)


async def _arun_steps(steps: Generator[_Step, object, ToolReply]) -> ToolReply:
    """As _run_steps, for what has to be awaited."""
    try:
        step = next(steps)
        while True:
            try:
                done = step()
                if inspect.isawaitable(done):
                    done = await done
            except Exception as error:  # noqa: BLE001 # the rule decides which of them the model receives
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        return end.value


def _telling(on_chunk: Callable[[Chunk], object] | None) -> Callable[[Chunk], Chunk]:
    """Passes each chunk on after on_chunk was called."""

    def tell(chunk: Chunk) -> Chunk:
        if on_chunk is not None:
            on_chunk(chunk)
        return chunk

    return tell


def _functions(
    tools: Sequence[Tool], functions: Mapping[str, Callable[..., object]] | None
) -> dict[str, Callable[..., object]]:
    """What runs each tool."""
    found = dict(functions or {})
    for name, tool in zip(tool_parameters(tool_schemas(tools)), tools, strict=True):
        if not isinstance(tool, Mapping):
            found[name] = tool
        elif name not in found:
            raise ValueError(
                f"the tool '{name}' is a schema without a function; give it by functions={{'{name}': ...}}."
            )
    return found


def _rounds(
    asked: Question,
    functions: Mapping[str, Callable[..., object]],
    reply: Callable[[Sequence[Message], str], object],
    choice: str,
    max_rounds: int,
    on_call: Callable[[ToolOutcome], object] | None,
    confirm: Callable[[ToolCall], object] | None,
    cancel: Cancel | None,
) -> Generator[_Step, object, ToolReply]:
    """The rule of the loop: it says what is to be done, and is given the result, or thrown what that raised."""
    if max_rounds < 1:
        raise ValueError(f"max_rounds is {max_rounds}; expected 1 or more.")
    parameters = tool_parameters(tool_schemas(asked.tools))
    said: list[Message] = []
    outcomes: list[ToolOutcome] = []
    for count in range(max_rounds + 1):
        now = choice if count == 0 else ("none" if choice == "none" else "auto")
        completion = cast("Completion", (yield lambda now=now: reply([*asked.messages, *said], now)))
        said.append(completion.message)
        if not completion.tool_calls or completion.finish_reason in ("cancelled", "timeout") or count == max_rounds:
            break
        for call in completion.tool_calls:
            ran, result = yield from _run(call, functions, parameters, confirm, cancel)
            outcome = ToolOutcome(call=call, ran=ran, result=result)
            outcomes.append(outcome)
            said.append(result_message(call, result))
            if on_call is not None:
                yield lambda outcome=outcome: on_call(outcome)
    return ToolReply(completion=completion, messages=tuple(said), outcomes=tuple(outcomes))  # pyright: ignore[reportPossiblyUnboundVariable] # there is at least one round


def _is_cancelled(cancel: Cancel | None) -> bool:
    return cancel is not None and cancel.cancelled


def _run(
    call: ToolCall,
    functions: Mapping[str, Callable[..., object]],
    parameters: Mapping[str, Mapping[str, object]],
    confirm: Callable[[ToolCall], object] | None,
    cancel: Cancel | None,
) -> Generator[_Step, object, tuple[bool, str]]:
    """Whether a call ran, and its result or what was wrong."""
    if call.problem:
        return False, f"error: {call.problem}"
    if call.name not in parameters:
        return False, f"error: there is no tool '{call.name}'; there are {', '.join(parameters)}."
    try:
        check_arguments(call.arguments, cast("Mapping[str, JSON]", parameters[call.name]))
    except ValueError as error:
        return False, f"error: {error}"
    if _is_cancelled(cancel):  # by a tool before it, say: nobody is asked any more
        return False, _CANCELLED
    if confirm is not None and not (yield lambda: confirm(call)):
        return False, "error: the user declined the call."
    if _is_cancelled(cancel):
        return False, _CANCELLED
    try:
        value = yield lambda: functions[call.name](**call.arguments)
        return True, _as_text(value if isinstance(value, str) else _json(value))
    except Exception as error:  # noqa: BLE001 # a tool is the application's: whatever it raises is for the model to know of
        return False, _as_text(f"error: {type(error).__name__}: {_words(error)}")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _as_text(text: str) -> str:
    """Without lone surrogates, which names of files have in the place of bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _words(error: Exception) -> str:
    """What an error says; some cannot say it."""
    try:
        return str(error)
    except Exception as inner:  # noqa: BLE001 # an application's __str__ may raise anything
        return f"(its text cannot be had: {type(inner).__name__})"


@dataclass(slots=True, kw_only=True)
class Question:
    """What the loop begins with."""

    messages: Sequence[Message]
    tools: Sequence[Tool]
    talk: Conversation | None = None
    _said: int = 0  # of all messages since the first one, how many the conversation has
    _result: Message | None = None  # of a tool, said last: there when the reply to it has any text

    @classmethod
    def of(
        cls,
        model: Model | Conversation,
        messages: str | Message | Sequence[Message],
        tools: Sequence[Tool] | None,
        variables: Mapping[str, JSON] | None,
    ) -> Question:
        """Raises ValueError for what does not go together."""
        if isinstance(model, Model):
            check_messages(messages)
            if tools is None:
                raise ValueError("there are no tools; give functions or schemas.")
            return cls(messages=cast("Sequence[Message]", messages), tools=tools)
        if tools is not None or variables is not None:
            raise ValueError("a conversation has tools and variables of its own; give them to Model.conversation().")
        if not isinstance(messages, str | Mapping):
            raise ValueError(f"messages is {messages!r:.80}; to a conversation a text or one message is said.")
        if not model.tools:
            raise ValueError("this conversation has no tools; give them to Model.conversation().")
        said: Message = {"role": "user", "content": messages} if isinstance(messages, str) else messages
        return cls(messages=[said], tools=model.tools, talk=model)

    def new_of(self, said: Sequence[Message]) -> Message:
        """What is to be said of all messages so far; those before it, which are new as well, go into the history."""
        assert self.talk is not None
        self._result = said[-1] if self._said else None
        new, self._said = said[self._said :], len(said) + 1  # the reply to it will be there, too
        self.talk.messages += new[:-1]
        return new[-1]

    @contextmanager
    def kept(self) -> Iterator[None]:
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
