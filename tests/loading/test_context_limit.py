"""load(context=...): sequences that are shorter than what the export holds, on every engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from embedllm import ContextFull, Sampling, load
from embedllm.export import Recipe, convert
from embedllm.loading.memory_estimate import estimate_memory
from embedllm.package.package import open_package
from tests.support.external_folders import stripped
from tests.support.tiny_recurrent import tiny_qwen3_5

GREEDY = Sampling(temperature=0)
LIMIT = 24
ENGINES: dict[str, dict[str, object]] = {
    "cpu": {"device": "cpu"},
    "openvino": {"device": "openvino"},
    "openvino, exact": {"device": "openvino", "exact": True},
    "reference": {"device": "reference"},
}


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])  # that one with states, too
def package(
    request: pytest.FixtureRequest, tiny_package: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if request.param == "llama":
        return tiny_package("llama")
    folder = tmp_path_factory.mktemp(request.param)
    return convert(tiny_qwen3_5(folder / "checkpoint"), folder / "package", Recipe().of_floats)


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_replies_are_those_of_the_whole_context_up_to_the_limit(package: Path, options: dict[str, object]) -> None:
    prompt = list(range(5, 15))
    with load(package, **options) as whole:  # type: ignore[arg-type]  # the options of load()
        right = whole.generate(prompt, GREEDY, max_tokens=40, min_tokens=40)
    with load(package, context=LIMIT, **options) as limited:  # type: ignore[arg-type]  # as above
        assert limited.context == LIMIT
        reply = limited.generate(prompt, GREEDY, max_tokens=40, min_tokens=40)
        assert reply.finish_reason == "context"
        assert len(reply.tokens) == LIMIT - len(prompt)
        assert reply.tokens == right.tokens[: len(reply.tokens)]
        with pytest.raises(ContextFull, match=r"has 30 tokens; 24 can be held .*, or load with a larger context"):
            limited.generate([7] * 30)


def test_more_than_the_package_holds_is_refused(tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("llama")
    most = open_package(folder).context
    with load(folder, device="cpu", context=most) as llm:
        assert llm.context == most
        with pytest.raises(ContextFull, match="export with a larger --context"):
            llm.generate([7] * (most + 1))
    message = f"context is {most + 1} tokens, and 'package' holds {most} at most. Leave it out, or export with a larger"
    with pytest.raises(ValueError, match=re.escape(message)):
        load(folder, device="cpu", context=most + 1)


def test_a_folder_of_another_exporter_is_limited(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = stripped(tiny_package("llama"), tmp_path / "external")
    with load(folder, device="cpu", context=LIMIT) as llm:
        assert llm.generate([5, 6, 7], GREEDY, min_tokens=LIMIT - 3).finish_reason == "context"
        with pytest.raises(ContextFull, match="load with a larger context"):
            llm.generate([7] * 30)


def test_memory_is_estimated_for_it(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package("llama"))
    with load(package.folder, device="cpu") as llm:
        whole = estimate_memory(package, llm.device)
        package.limit_context(LIMIT)
        limited = estimate_memory(package, llm.device)
    assert limited.context == limited.largest_context == LIMIT
    assert limited.kv_bytes < whole.kv_bytes
