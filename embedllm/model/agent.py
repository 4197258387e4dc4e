"""The tool loop (agent): calls are checked, allowed and run, and their results sent to the model, until it answers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Unpack

from embedllm.cancel import Cancel, given_or_own
from embedllm.generation.completion import Completion, collect
from embedllm.generation.options import ReplyOptions, lists_options
from embedllm.model.conversation import Conversation
from embedllm.model.model import Model
from embedllm.model.tool_loop import Loop, Question, Run, Step
from embedllm.model.tool_reply import (
    Decision,
    PausedRun,
    ToolOutcome,
    ToolReply,
)
from embedllm.sampling.options import Sampling
from embedllm.text.chat_template import Message, Tool, tool_schemas
from embedllm.text.function_schema import FunctionTool, argument_reader
from embedllm.tools.calls import ToolCall, tool_parameters
from embedllm.tools.tool_choice import choice_name

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk
    from embedllm.text.chat_template import JSON

MOST_ROUNDS = 8
_NO_DECISIONS: Mapping[str, Decision] = {}


@lists_options(ReplyOptions)
def run_tools(
    model: Model | Conversation,
    messages: str | Message | Sequence[Message] | PausedRun,
    tools: Sequence[Tool] | None = None,
    sampling: Sampling | None = None,
    *,
    functions: Mapping[str, Callable[..., object]] | None = None,
    max_rounds: int = MOST_ROUNDS,
    on_call: Callable[[ToolOutcome], object] | None = None,
    on_chunk: Callable[[Chunk], object] | None = None,
    confirm: Callable[[ToolCall], bool] | None = None,
    needs_approval: Callable[[ToolCall], bool] | None = None,
    decisions: Mapping[str, Decision] = _NO_DECISIONS,
    cancel: Cancel | None = None,
    variables: Mapping[str, JSON] | None = None,
    **options: Unpack[ReplyOptions],
) -> ToolReply:
    """The model's answer to a conversation, with the tools that it called on the way.

    model: or a Conversation, to which `messages` is then what is said, a text or a message; it has its own tools and
    variables, and its history gets all of it, or nothing when this fails.
    tools: functions, FunctionTools, or JSON schemas whose functions `functions` has by name. max_rounds: replies with
    calls that are run; those of one more are not. on_call: called with each call. on_chunk: called with each chunk of
    each reply. confirm: asked before a tool runs; without it all run. A call that cannot be read, of no tool, with
    wrong arguments or refused, and a tool that raises, are sent to the model as the result. cancel: ends the reply that
    is coming, and no tool runs after it. options: as of Model.generate(); tool_choice goes for the first reply.
    needs_approval: asked for each call of a reply that could run. If it is true for any, none of the reply's calls
    runs, and the reply's `paused` is what to resume: give it as `messages`, now or in another process, with the same
    tools, and for each of its pending calls by id one of `decisions`: True runs it, a mapping runs it with these
    arguments instead, False or a text that says why not sends that to the model.
    Raises ValueError for a tool without a function, for one that has to be awaited (arun_tools takes those), and for
    decisions that do not fit the calls; then nothing has run.
    """
    question, tell = Question.of(model, messages, tools, variables), _telling(on_chunk)
    runners = _runners(question.tools, functions, awaits=False)

    def reply(history: Sequence[Message], choice: str) -> Completion:
        now: ReplyOptions = {**options, "tool_choice": choice}
        if isinstance(model, Model):
            chunks = model.stream(history, sampling, cancel=cancel, tools=tools, variables=variables, **now)
        else:
            chunks = model.stream(question.new_of(history), sampling, cancel=cancel, **now)
        with closing(chunks):  # when on_chunk raises: a conversation then takes back what it has of the reply
            return collect(map(tell, chunks))

    choice = choice_name(options.get("tool_choice", "auto"))
    loop = Loop(question, runners, reply, choice, max_rounds, on_call=on_call, confirm=confirm, decisions=decisions,
                 needs_approval=needs_approval, cancel=given_or_own(cancel))  # fmt: skip
    steps = loop.steps()
    with question.protect_history():
        return _run_steps(steps)


def _run_steps(steps: Generator[Step, object, ToolReply]) -> ToolReply:
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
    messages: str | Message | Sequence[Message] | PausedRun,
    tools: Sequence[Tool] | None = None,
    sampling: Sampling | None = None,
    *,
    functions: Mapping[str, Callable[..., object]] | None = None,
    max_rounds: int = MOST_ROUNDS,
    on_call: Callable[[ToolOutcome], object] | None = None,
    on_chunk: Callable[[Chunk], object] | None = None,
    confirm: Callable[[ToolCall], bool | Awaitable[bool]] | None = None,
    needs_approval: Callable[[ToolCall], bool | Awaitable[bool]] | None = None,
    decisions: Mapping[str, Decision] = _NO_DECISIONS,
    cancel: Cancel | None = None,
    variables: Mapping[str, JSON] | None = None,
    **options: Unpack[ReplyOptions],
) -> ToolReply:
    """As run_tools(), without blocking the event loop while the model computes.

    Tools, `confirm` and `needs_approval` may be coroutine functions; others run in the event loop's thread.
    """
    question, tell = Question.of(model, messages, tools, variables), _telling(on_chunk)

    async def reply(history: Sequence[Message], choice: str) -> Completion:
        now: ReplyOptions = {**options, "tool_choice": choice}
        if isinstance(model, Model):
            chunks = await model.aopen_stream(history, sampling, cancel=cancel, tools=tools, variables=variables, **now)
        else:
            chunks = await model.aopen_stream(question.new_of(history), sampling, cancel=cancel, **now)
        async with aclosing(chunks):
            return collect([tell(chunk) async for chunk in chunks])

    runners = _runners(question.tools, functions, awaits=True)
    choice = choice_name(options.get("tool_choice", "auto"))
    loop = Loop(question, runners, reply, choice, max_rounds, on_call=on_call, confirm=confirm, decisions=decisions,
                 needs_approval=needs_approval, cancel=given_or_own(cancel))  # fmt: skip
    steps = loop.steps()
    with question.protect_history():
        return await _arun_steps(steps)


async def _arun_steps(steps: Generator[Step, object, ToolReply]) -> ToolReply:
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


def _runners(
    tools: Sequence[Tool], functions: Mapping[str, Callable[..., object]] | None, *, awaits: bool
) -> dict[str, Run]:
    """What runs each tool. A function whose type hints its schema is made of gets arguments of these types."""
    runners: dict[str, Run] = {}
    for name, tool in zip(tool_parameters(tool_schemas(tools)), tools, strict=True):
        if isinstance(tool, FunctionTool):
            called, runners[name] = tool.run, (awaits and tool.arun) or tool.run
        elif not isinstance(tool, Mapping):
            called, runners[name] = tool, _by_hints(tool)
        elif functions and name in functions:
            called, runners[name] = functions[name], _by_name(functions[name])
        else:
            raise ValueError(
                f"the tool '{name}' is a schema without a function; give it by functions={{'{name}': ...}}."
            )
        if not awaits and inspect.iscoroutinefunction(called):
            raise ValueError(f"the tool '{name}' has to be awaited; use arun_tools.")
    return runners


def _by_hints(function: Callable[..., object]) -> Run:
    read = argument_reader(function)
    return lambda arguments, cancel: function(**read(arguments))


def _by_name(function: Callable[..., object]) -> Run:
    return lambda arguments, cancel: function(**arguments)
