"""Bits under a budget: who gets 8, that the file keeps within its size, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import embedllm
from embedllm.cli.main import cli
from embedllm.errors import ExportError
from embedllm.export import Progress, Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.quantization.mixed_precision import Candidate, allotted, budget, choose, open_runs
from embedllm.export.writing.plan import plan
from embedllm.package.package import open_package
from embedllm.package.tensors import parameters, rotary_bytes
from tests.support.calibration_texts import kl, logits, manifest, text
from tests.support.tiny import tiny_checkpoint, tiny_config

CANDIDATES = st.lists(st.builds(Candidate, st.floats(0, 1), st.integers(1, 1000)), min_size=1, max_size=12)


NARROW = Recipe(group_size=16)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint")


def ends(family: str = "qwen3", recipe: Recipe = NARROW) -> tuple[int, int]:
    """Bytes of the weights file of a tiny model with all in 4 bits and in 8."""
    decoder = describe(Config(tiny_config(family)), None)
    least, most = (plan(decoder, replace(recipe, bits=bits)).layout.size for bits in (4, 8))
    return least, most


def between(share: float) -> int:
    least, most = ends()
    return int(least + share * (most - least))


def extra(candidates: list[Candidate], chosen: Collection[int]) -> int:
    return sum(candidates[index].extra for index in chosen)


def within(candidates: list[Candidate], limit: int) -> Callable[[Collection[int]], bool]:
    return lambda chosen: extra(candidates, chosen) <= limit


# Who gets more


def test_the_best_a_byte_goes_first_and_what_does_not_fit_is_passed_over() -> None:
    candidates = [Candidate(0.1, 10), Candidate(0.9, 10), Candidate(8.0, 100), Candidate(0.2, 10)]
    assert choose(candidates, within(candidates, 25)) == [1, 3]
    assert choose(candidates, within(candidates, 120)) == [1, 2, 3]


@given(CANDIDATES, st.integers(0, 8000))
def test_the_budget_holds_and_nothing_more_would_fit(candidates: list[Candidate], limit: int) -> None:
    chosen = choose(candidates, within(candidates, limit))
    assert extra(candidates, chosen) <= limit
    others = set(range(len(candidates))) - set(chosen)
    assert all(extra(candidates, [*chosen, other]) > limit for other in others)


@given(CANDIDATES, st.integers(0, 8000), st.integers(0, 1000))
def test_a_larger_budget_is_never_used_less(candidates: list[Candidate], limit: int, more: int) -> None:
    small, large = (choose(candidates, within(candidates, most)) for most in (limit, limit + more))
    assert extra(candidates, small) <= extra(candidates, large)


@given(CANDIDATES, st.integers(0, 8000))
def test_who_is_passed_over_did_not_fit_beside_the_better_ones(candidates: list[Candidate], limit: int) -> None:
    chosen = choose(candidates, within(candidates, limit))
    worth = [one.loss / one.extra for one in candidates]
    for other in set(range(len(candidates))) - set(chosen):
        assert extra(candidates, [*(at for at in chosen if worth[at] >= worth[other]), other]) > limit


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@settings(max_examples=10)  # each makes a plan a run
@given(share=st.floats(0, 1), data=st.data())
def test_the_files_size_keeps_within_any_budget(family: str, share: float, data: st.DataObject) -> None:
    least, most = ends(family)
    recipe = Recipe(group_size=16, size=int(least + share * (most - least)))
    narrow = plan(describe(Config(tiny_config(family)), None), recipe)
    size = budget(narrow, recipe)
    assert size == recipe.size
    assert size is not None
    runs = open_runs(narrow, recipe)
    kls = data.draw(st.lists(st.floats(0, 1), min_size=len(runs), max_size=len(runs)))
    found = allotted(narrow, recipe, kls, size)
    assert least <= found.layout.size <= size
    for run in found.runs:
        assert len({found.packing[linear.name].bits for linear in run}) == 1


def test_rotary_tables_of_a_long_context_take_no_share_of_mean_bits() -> None:
    recipe = Recipe(group_size=16, mean_bits=8.0)
    short, long = (
        plan(describe(Config(tiny_config() | {"max_position_embeddings": tokens}), None), recipe)
        for tokens in (128, 32768)
    )
    tables = 2 * (32768 - 128) * (long.decoder.rope.rotary_dim // 2) * 4
    assert 8 * tables > 8.0 * parameters(long.decoder)  # they alone would fill the budget
    budgets = [budget(one, recipe) for one in (short, long)]
    assert budgets[0] is not None
    assert budgets[1] == budgets[0] + tables
    with pytest.raises(ExportError, match=r"a shorter context: its rotary tables are .* and none of these bits"):
        budget(long, Recipe(group_size=16, mean_bits=4.0))


def test_tables_with_bits_of_their_own_keep_them(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    least, most = ends("llama", Recipe(group_size=16, head_bits=8, embedding_bits=16))
    recipe = Recipe(group_size=16, head_bits=8, embedding_bits=16, size=(least + most) // 2)
    found = manifest(convert(checkpoint, tmp_path / "p", recipe, calibration=text(tmp_path / "text.jsonl")))
    bits: dict[str, int] = {name: way["bits"] for name, way in found["quantization"].items()}  # type: ignore[attr-defined]
    assert (bits.pop("head"), bits.pop("embedding")) == (8, 16)
    assert set(bits.values()) == {4, 8}


# The export


@pytest.mark.slow
@pytest.mark.parametrize("method", ["search", "nearest", "gptq"])
def test_the_file_is_within_its_size_and_nearer_to_the_model(method: str, tiny: Path, tmp_path: Path) -> None:
    file, size = text(tmp_path / "text.jsonl"), between(0.5)
    recipe = Recipe(group_size=16, method=method, size=size)
    stages: list[str] = []
    package = convert(
        tiny, tmp_path / "p", recipe, calibration=file, verify=True, on_progress=lambda at: stages.append(at.stage)
    )
    assert ends()[0] < (package / "weights.safetensors").stat().st_size <= size
    assert stages[0] == "sensitivity"
    with embedllm.load(package) as model:
        assert len(model.generate([5, 6, 7], max_tokens=4, stop_tokens=()).tokens) == 4
    sequences = np.arange(5, 205).reshape(10, 20)
    narrow = convert(tiny, tmp_path / "narrow", Recipe(group_size=16, method="nearest"))
    base = convert(tiny, tmp_path / "base", Recipe(bits=32))
    exact, near, far = (logits(one, sequences) for one in (base, package, narrow))
    assert kl(exact, near) < 0.8 * kl(exact, far)


def test_the_manifest_says_what_was_asked_measured_and_chosen(tiny: Path, tmp_path: Path) -> None:
    file, size = text(tmp_path / "text.jsonl"), between(0.5)
    found = manifest(convert(tiny, tmp_path / "p", Recipe(group_size=16, size=size), calibration=file))
    assert found["recipe"]["size"] == size  # type: ignore[index]
    assert found["calibration"]["text"] == "text.jsonl"  # type: ignore[index]
    bits: dict[str, int] = {name: way["bits"] for name, way in found["quantization"].items()}  # type: ignore[attr-defined]
    measured: list[Any] = found["sensitivity"]  # type: ignore[assignment]
    assert sorted(name for run in measured for name in run["matrices"]) == sorted(bits)
    assert all(run["kl"] > 0 for run in measured)
    assert set(bits.values()) == {4, 8}


def test_without_a_text_the_built_in_one_is_read(tiny: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    package = convert(tiny, tmp_path / "p", Recipe(group_size=16, size=between(0.5)), on_progress=seen.append)
    assert list(dict.fromkeys(at.stage for at in seen)) == ["sensitivity", "inputs", "weights", "graphs"]
    assert manifest(package)["calibration"]["text"] == "built-in"  # type: ignore[index]
    open_package(package).check()


def test_either_end_is_no_mix(tiny: Path, tmp_path: Path) -> None:
    file = text(tmp_path / "text.jsonl")
    for bits, size in zip((4, 8), ends(), strict=True):
        recipe = Recipe(group_size=16, method="search")
        package = convert(tiny, tmp_path / f"{bits}", replace(recipe, size=size), calibration=file)
        plain = convert(tiny, tmp_path / f"plain {bits}", replace(recipe, bits=bits))
        assert (package / "weights.safetensors").read_bytes() == (plain / "weights.safetensors").read_bytes()


# What is refused


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(group_size=16, size=ends()[0] - 1),
        Recipe(group_size=16, size=ends()[1] + 1),
        Recipe(group_size=16, mean_bits=4.01),
        Recipe(group_size=16, mean_bits=float("nan")),
    ],
    ids=["size below", "size above", "bits below", "no number"],
)
def test_a_budget_out_of_reach_is_refused_with_both_ends(recipe: Recipe, tiny: Path, tmp_path: Path) -> None:
    least, most = ends()
    with pytest.raises(ExportError, match=rf"expected {least:,} bytes .* to {most:,} bytes"):
        convert(tiny, tmp_path / "p", recipe)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (Recipe(size=1, mean_bits=5), "both a size and mean bits"),
        (Recipe(bits=8, size=10**9), "bits is 8, and a size or mean bits are given"),
    ],
)
def test_bits_said_twice_are_refused(recipe: Recipe, says: str, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=says):
        convert(tiny, tmp_path / "p", recipe)


# The command


def export(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, arguments)])


@pytest.mark.slow
@pytest.mark.parametrize("by", ["--size", "--bits"])
def test_the_command_mixes_bits(by: str, tiny: Path, tmp_path: Path) -> None:
    file, size = text(tmp_path / "text.jsonl"), between(0.5)
    decoder = describe(Config(tiny_config()), None)
    mean_bits = 8 * (size - rotary_bytes(decoder)) / parameters(decoder)
    asked = size if by == "--size" else mean_bits
    call = ["--group", 16, "--calibrate", file, "--method", "search", "--json"]
    done = export(tiny, tmp_path / "p", by, asked, *call)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert ends()[0] < found["weights_bytes"] <= size
    assert found["bits_per_weight"] <= mean_bits
    same = convert(tiny, tmp_path / "q", Recipe(group_size=16, size=size, method="search"), calibration=file)
    assert (tmp_path / "p/weights.safetensors").read_bytes() == (same / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--size", "1MB", "--bits", "4"], "--size and --bits"),
        (["--bits", "3"], "4, 8, 16 or 32"),
        (["--bits", "nan"], "4, 8, 16 or 32"),
        (["--bits", "many"], "4, 8, 16 or 32"),
        (["--size", "many"], "is no size"),
    ],
)
def test_the_command_refuses_what_is_no_budget(arguments: list[str], says: str, tiny: Path, tmp_path: Path) -> None:
    done = export(tiny, tmp_path / "p", *arguments)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())
