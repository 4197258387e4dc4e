"""Tasks whose replies can be checked: read from a file, given to a model, judged by the rule of their group.

Standard library only. The file's format: docs/guide-eval.md#tasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from embedllm.evaluation.results import TaskScore, WrongReply
from embedllm.files.jsonl import fault, read_objects
from embedllm.sampling.options import Sampling
from embedllm.tools.calls import Parts

if TYPE_CHECKING:
    from embedllm.model.model import Model
    from embedllm.text.chat_template import JSON, Message

MAX_TOKENS = 256  # of a reply; what is longer is cut off and judged so
_EXPECTED = '{"group": "shell", "messages": [{"role": "user", "content": "..."}], "answer": "..."}, with "tools" or not'
_GREEDY = Sampling(temperature=0)
_FENCED = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked, and what is right."""

    line: int  # of the file, from 1
    group: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, JSON]] | None
    answer: str  # as the model writes it, special tokens and all


def read_tasks(path: Path) -> tuple[Task, ...]:
    """The tasks of a .jsonl file. Raises ValueError for a line that is none, and when there is none at all; OSError."""
    tasks = tuple(_task(path, number, fields) for number, fields in read_objects(path, _EXPECTED))
    if not tasks:
        raise ValueError(f"'{path}' holds no tasks; expected a line each: {_EXPECTED}.")
    return tasks


def run_tasks(model: Model, tasks: Sequence[Task], done: Callable[[], None]) -> tuple[TaskScore, ...]:
    """The scores of a model by group, in the order in which the groups appear. done: called after each reply.

    Replies are greedy, one at a time, each computed from its beginning: none depends on the others.
    """
    scores: dict[str, TaskScore] = {}
    for task in tasks:
        reply = _reply(model, task)
        done()
        score = scores.get(task.group, TaskScore(group=task.group, tasks=0, right=0, verbatim=0, wrong=()))
        right = is_right(task.group, _parts(model, task, reply), _parts(model, task, task.answer))
        wrong = () if right else (WrongReply(line=task.line, reply=reply),)
        scores[task.group] = replace(
            score,
            tasks=score.tasks + 1,
            right=score.right + right,
            verbatim=score.verbatim + (reply.strip() == task.answer.strip()),
            wrong=score.wrong + wrong,
        )
    return tuple(scores.values())


def is_right(group: str, reply: Parts, answer: Parts) -> bool:
    """Whether a reply does what the answer does, by the rule of the group.

    "shell": the command, which is the first fenced block, or else all of the text. "json": the value; keys in any
    order. "tool": the calls with their arguments, and the command where the answer calls nothing. Others: the text.
    """
    if group == "shell":
        return _command(reply.text) == _command(answer.text)
    if group == "json":
        return (value := _value(answer.text)) is not None and _value(reply.text) == value
    if group == "tool":
        return _calls(reply) == _calls(answer) and (
            bool(answer.tool_calls) or _command(reply.text) == _command(answer.text)
        )
    return reply.text.strip() == answer.text.strip()


def _task(path: Path, number: int, fields: Mapping[str, object]) -> Task:
    group, messages, answer, tools = (fields.get(name) for name in ("group", "messages", "answer", "tools"))
    for name, value in (("group", group), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            raise fault(path, number, f'has {"no" if value is None else "a wrong"} "{name}"', _EXPECTED)
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise fault(path, number, f'has {"no" if messages is None else "wrong"} "messages"', _EXPECTED)
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise fault(path, number, 'has wrong "tools"', _EXPECTED)
    if group == "json" and _value(str(answer)) is None:
        raise fault(path, number, 'is of the group "json", and its "answer" is no JSON', _EXPECTED)
    return Task(
        line=number,
        group=str(group),
        messages=cast("list[Message]", messages),  # what is wrong inside is the template's to say
        tools=cast("list[Mapping[str, JSON]] | None", tools),
        answer=str(answer),
    )


def _reply(model: Model, task: Task) -> str:
    """As it is written."""
    model.release()  # what a prompt has in common with the one before would be computed in other pieces
    return model.generate(
        task.messages, _GREEDY, tools=task.tools, max_tokens=MAX_TOKENS, special=True, speculate=None
    ).text


def _parts(model: Model, task: Task, written: str) -> Parts:
    """Reasoning, calls and text of what a model wrote, read as its own replies are."""
    reader = model.request(task.messages, _GREEDY, tools=task.tools, max_tokens=1).reader
    return Parts(written) if reader is None else reader.push(written, "stop")


def _command(text: str) -> str:
    fenced = _FENCED.search(text)
    return (fenced[1] if fenced else text).strip()


def _value(text: str) -> str | None:
    """A JSON value in one spelling, None for what is none; True is not 1."""
    try:
        return json.dumps(json.loads(_command(text)), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def _calls(parts: Parts) -> list[tuple[str, str, str]]:
    return [(call.name, json.dumps(call.arguments, sort_keys=True), call.problem) for call in parts.tool_calls]
