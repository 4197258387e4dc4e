"""What a caller may ask for: other values are refused by name, before anything is computed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedllm
from embedllm.cancel import Cancel
from embedllm.errors import DeviceError, PackageError
from embedllm.generation.beam_search import BeamSearch
from embedllm.generation.defaults import read_defaults
from embedllm.generation.runner import Runner
from embedllm.text.tokenizer_config import read_tokenizer_config
from tests.generation.test_runner import request
from tests.support.fakes import Bytes, FakeEngine

SURROGATE = "a\udc80"
LONE = r"has the lone surrogate U\+DC80 at character"


@pytest.fixture(scope="module")
def demo() -> embedllm.Model:
    return embedllm.load("demo", device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 1.5}, "max_tokens is 1.5; expected a whole number, 1 or more, or None"),
        ({"max_tokens": math.nan}, "max_tokens is nan; expected a whole number"),
        ({"max_tokens": "3"}, "max_tokens is '3'; expected a whole number"),
        ({"max_tokens": True}, "max_tokens is True; expected a whole number"),
        ({"min_tokens": 1.5}, "min_tokens is 1.5; expected a whole number, 0 to max_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; expected a whole number, 0 to max_tokens"),
        ({"logprobs": math.nan}, "logprobs is nan; expected how many tokens"),
        ({"logprobs": 2.0}, "logprobs is 2.0; expected how many tokens"),
        ({"timeout": "soon"}, "timeout is 'soon'; expected seconds"),
        ({"priority": 0.5}, "priority is 0.5; expected a whole number"),
        ({"stop": [SURROGATE]}, f"a stop string {LONE} 1"),
        ({"stop": SURROGATE}, f"a stop string {LONE} 1"),
        ({"stop_tokens": [2**70]}, "stop_tokens is .*; expected a list of token ids, 0 to 16383"),
        ({"stop_tokens": [16384]}, "stop_tokens is .16384.; expected a list of token ids, 0 to 16383"),
        ({"stop_tokens": [-1]}, "stop_tokens is .-1.; expected a list of token ids"),
        ({"stop_tokens": 7}, "stop_tokens is 7; expected a list of token ids"),
        ({"stop_tokens": ["</s>"]}, "stop_tokens is .*; expected a list of token ids"),
        ({"logit_bias": {2**70: 1}}, "logit_bias has the token 1180591.*; expected token ids, 0 to 2147483647"),
        ({"bad_words": [[2**70]]}, "bad_words has .*; expected texts or sequences of token ids, 0 to 2147483647"),
        ({"response_format": ["yes", SURROGATE]}, f"one of the choices {LONE}"),
        ({"response_format": {"type": "regex", "regex": SURROGATE}}, f"response_format.regex {LONE}"),
        ({"response_format": re.compile(SURROGATE)}, f"the regex {LONE}"),
        ({"response_format": {"type": "lark", "lark": f'start: "{SURROGATE}"'}}, f"response_format.lark {LONE}"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": SURROGATE}}}},
            f"the JSON schema {LONE}",
        ),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(
    demo: embedllm.Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        demo.generate("Hi", **options)


def test_numpy_numbers_are_numbers(demo: embedllm.Model) -> None:
    plain = demo.generate("Hi", max_tokens=3, temperature=0).tokens
    found = demo.generate("Hi", max_tokens=np.int64(3), stop_tokens=np.array([5]), temperature=0)  # type: ignore[arg-type]
    assert found.tokens == plain


@pytest.mark.parametrize("beams", [0, 1025, 10**9, 1.5])
def test_beams_are_bounded(beams: int) -> None:
    with pytest.raises(ValueError, match=r"beams is .*; expected a whole number, 1 to 1024"):
        BeamSearch(beams=beams, stop_tokens=(), limit=3)


def test_beams_that_the_memory_has_no_room_for_are_refused_before_they_run(demo: embedllm.Model) -> None:
    held = demo.runner.sequences.kv_tokens
    demo.runner.sequences.kv_tokens = 100
    try:
        with pytest.raises(ValueError, match=r"64 beams of \d+ tokens each need .* takes 100. Ask for fewer beams"):
            demo.beam_search("Hi there", 64, max_tokens=2)
    finally:
        demo.runner.sequences.kv_tokens = held


def test_memory_that_is_used_up_is_our_error() -> None:
    def fail(_: object) -> int:
        raise MemoryError("cannot allocate 5 GiB")

    runner = Runner(FakeEngine(fail), Bytes())
    with pytest.raises(DeviceError, match=r"the memory of this process is used up \(cannot allocate 5 GiB\)") as caught:
        list(runner.stream(request([1, 2]), Cancel()))
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize(
    "message", ["ONNX Runtime failed at position 2: CUDA failure 2: out of memory", "std::bad_alloc"]
)
def test_memory_that_a_runtime_has_none_of_is_told_with_what_helps(message: str, is_direct: bool) -> None:
    def fail(_: object) -> int:
        raise DeviceError(message)

    runner = Runner(FakeEngine(fail), Bytes(), is_direct=is_direct)
    with pytest.raises(DeviceError, match=rf"memory ran out \({message}\)\. Ask for fewer tokens.*draft="):
        list(runner.stream(request([1, 2]), Cancel()))


def test_another_error_of_a_runtime_is_left_as_it_is() -> None:
    error = DeviceError("the device was lost")

    def fail(_: object) -> int:
        raise error

    with pytest.raises(DeviceError) as caught:
        list(Runner(FakeEngine(fail), Bytes()).stream(request([1, 2]), Cancel()))
    assert caught.value is error


@pytest.mark.parametrize("path", [b"demo", 3, None])
def test_a_model_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(TypeError, match=r"the model is .*; expected the path of a folder or a name"):
        embedllm.load(path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("tokenizer_config.json", read_tokenizer_config),
        ("generation_config.json", read_defaults),
    ],
)
def test_json_without_a_bottom_is_a_package_error(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    (tmp_path / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(PackageError, match=name):
        read(tmp_path)


def test_the_nesting_is_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"a": {"b": {}}}))
    assert read_tokenizer_config(tmp_path).added == ()
