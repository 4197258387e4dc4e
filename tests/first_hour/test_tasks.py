"""The tasks of the first hour: each is held by tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.first_hour.tasks import TASKS, Task

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file, those of a class with its name before them."""
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return frozenset(found)


def test_there_are_46() -> None:
    assert [task.number for task in TASKS] == list(range(1, 47))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.number} {task.title}")
def test_a_task_is_held_by_tests_that_exist(task: Task) -> None:
    assert task.tests
    for named in task.tests:
        file, _, name = named.partition("::")
        assert name.rpartition("::")[2].startswith("test_")
        assert name in names_in(file), f"there is no test {named}; name the one that took its place"


def test_no_page_names_a_package_that_is_not_published() -> None:
    """Nor an address of it; when a release has made both true, this goes."""
    unpublished = re.compile(r"cdn\.jsdelivr\.net/npm/embedllm|npm (?:install|i|add) embedllm-web(?!\S)")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "samples").rglob("README.md")]
    assert not [path.name for path in pages if unpublished.search(path.read_text(encoding="utf-8"))]
    assert "not published yet" in (ROOT / "README.md").read_text(encoding="utf-8")
