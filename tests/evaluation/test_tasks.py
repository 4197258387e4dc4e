"""Tasks: what a file may hold, and when a reply is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.evaluation.tasks import is_right, read_tasks, run_tasks
from embedllm.generation.completion import Completion
from embedllm.tools.calls import Parts, ToolCall

ASK = [{"role": "user", "content": "list files"}]
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "demo_greedy.json").read_text("utf-8"))


def write_tasks(path: Path, *tasks: object) -> Path:
    path.write_text("\n".join(map(json.dumps, tasks)), encoding="utf-8")
    return path


def called(name: str, arguments: dict[str, object], problem: str = "") -> Parts:
    return Parts("", "", (ToolCall(id="made up", name=name, arguments=arguments, problem=problem),))  # type: ignore[arg-type]  # of JSON


# --- right or wrong


@pytest.mark.parametrize(
    ("group", "reply", "answer", "right"),
    [
        ("shell", "```sh\nls -l\n```\nLists files.", "```sh\nls -l\n```", True),
        ("shell", "ls -l\n", "```sh\nls -l\n```", True),
        ("shell", "```bash\nls -a\n```", "```sh\nls -l\n```", False),
        ("shell", "```sh\nls\npwd\n```", "```sh\nls\n```", False),
        ("json", '{"b": 2, "a": [1]}', '{"a": [1], "b": 2}', True),
        ("json", '```json\n{"a": 1}\n```', '{"a":1}', True),
        ("json", '{"a": true}', '{"a": 1}', False),
        ("json", '{"a": 1', '{"a": 1}', False),
        ("json", "no JSON", '{"a": 1}', False),
        ("capitals", " Oslo\n", "Oslo", True),
        ("capitals", "oslo", "Oslo", False),
        ("tool", "```sh\nls\n```", "```sh\nls\n```\nLists.", True),
        ("tool", "```sh\npwd\n```", "```sh\nls\n```", False),
    ],
)
def test_a_text_is_right_by_the_rule_of_its_group(group: str, reply: str, answer: str, right: bool) -> None:
    assert is_right(group, Parts(reply), Parts(answer)) is right


def test_calls_are_right_when_names_and_arguments_are() -> None:
    answer = called("get", {"city": "Oslo", "days": 2})
    assert is_right("tool", called("get", {"days": 2, "city": "Oslo"}), answer)
    assert not is_right("tool", called("get", {"city": "Oslo", "days": 2.5}), answer)
    assert not is_right("tool", called("put", {"city": "Oslo", "days": 2}), answer)
    assert not is_right("tool", called("get", {"city": "Oslo", "days": 2}, "cut off"), answer)
    assert not is_right("tool", Parts("get"), answer)
    assert not is_right("tool", answer, Parts("```sh\nls\n```"))


# --- with a model


@pytest.mark.slow
def test_the_demo_gets_its_golden_replies_right_and_is_wrong_otherwise(tmp_path: Path) -> None:
    plain = next(row for row in GOLDEN if not row["tools"])
    called = next(row for row in GOLDEN if row["tools"] and "<tool_call>" in row["text"])
    tasks = [
        {"group": "shell", "messages": plain["messages"], "answer": plain["text"]},
        {"group": "tool", "messages": called["messages"], "tools": called["tools"], "answer": called["text"]},
        {"group": "shell", "messages": plain["messages"], "answer": "rm -r /"},
        # the same call in another spelling: read as the model's own replies are
        {"group": "tool", "messages": called["messages"], "tools": called["tools"],
         "answer": called["text"].replace('": ', '":')},
    ]  # fmt: skip
    read, done = read_tasks(write_tasks(tmp_path / "t.jsonl", *tasks)), []
    with embedllm.load("demo", device="cpu") as llm:
        shell, tool = run_tasks(llm, read, lambda: done.append(1))
    assert (shell.group, shell.tasks, shell.right, shell.verbatim) == ("shell", 2, 1, 1)
    assert (tool.group, tool.tasks, tool.right, tool.verbatim) == ("tool", 2, 2, 1)
    assert [(wrong.line, wrong.reply) for wrong in shell.wrong] == [(3, plain["text"])]
    assert (tool.wrong, len(done)) == ((), 4)


def test_no_reply_depends_on_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same prompt twice, and nothing of it out of a cache."""
    cached = []
    with embedllm.load("demo", device="cpu") as llm:
        generate = llm.generate

        def noting(*arguments: Any, **options: Any) -> Completion:  # noqa: ANN401  # whatever generate() is given
            reply = generate(*arguments, **options)
            cached.append(reply.statistics.cached_tokens)
            return reply

        monkeypatch.setattr(llm, "generate", noting)
        task = {"group": "shell", "messages": ASK, "answer": "ls"}
        run_tasks(llm, read_tasks(write_tasks(tmp_path / "t.jsonl", task, task)), lambda: None)
    assert cached == [0, 0]


# --- what is refused


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"messages": ASK, "answer": "ls"}, 'line 2 of .* has no "group"'),
        ({"group": 3, "messages": ASK, "answer": "ls"}, 'line 2 of .* has a wrong "group"'),
        ({"group": "shell", "messages": ASK, "answer": ""}, 'line 2 of .* has a wrong "answer"'),
        ({"group": "shell", "messages": [], "answer": "ls"}, 'line 2 of .* has wrong "messages"'),
        ({"group": "shell", "messages": ["ls"], "answer": "ls"}, 'line 2 of .* has wrong "messages"'),
        ({"group": "shell", "answer": "ls"}, 'line 2 of .* has no "messages"'),
        ({"group": "tool", "messages": ASK, "answer": "ls", "tools": "ls"}, 'line 2 of .* has wrong "tools"'),
        ({"group": "json", "messages": ASK, "answer": "{"}, 'group "json", and its "answer" is no JSON'),
    ],
)
def test_a_line_that_is_no_task_is_named(task: object, message: str, tmp_path: Path) -> None:
    first = {"group": "shell", "messages": ASK, "answer": "ls"}
    with pytest.raises(ValueError, match=message):
        read_tasks(write_tasks(tmp_path / "t.jsonl", first, task))


def test_a_file_without_tasks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no tasks; expected a line each"):
        read_tasks(write_tasks(tmp_path / "t.jsonl"))
