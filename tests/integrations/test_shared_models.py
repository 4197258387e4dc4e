"""Models that objects of an integration share."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import pytest

from embedllm.integrations.shared_models import check_calls, shared_model
from embedllm.tools.calls import ToolCall


def test_the_same_path_gives_the_same_model_until_it_is_closed_or_dropped(tiny_package: Callable[..., Path]) -> None:
    path = str(tiny_package("llama"))
    first = shared_model(path, "cpu")
    assert shared_model(path, "cpu") is first
    first.close()
    second = shared_model(path, "cpu")
    assert second is not first
    assert second.generate("a", max_tokens=1).tokens
    dropped = ref(second)
    del second
    gc.collect()
    assert dropped() is None
    shared_model(path, "cpu").close()


def test_a_call_with_a_problem_is_refused_with_what_the_model_wrote() -> None:
    check_calls([ToolCall(id="1", name="good")])
    with pytest.raises(ValueError, match=r"no such tool.*'<call>'.*tool_choice"):
        check_calls([ToolCall(id="1", name="x", problem="no such tool", text="<call>")])
