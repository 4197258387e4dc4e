"""tune() on real models: what it tries, and the commands that show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import embedllm
from embedllm.backends.base import Device, Engine, OpenOptions
from embedllm.backends.devices import drivers, registry
from embedllm.backends.devices.drivers import find_family
from embedllm.backends.needed_memory import MemoryEstimate
from embedllm.backends.options import DEFAULT
from embedllm.cli.main import cli
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.export import Recipe
from embedllm.loading import memory_estimate, tuning_record
from embedllm.loading.device_check import DeviceChecks, Usable
from embedllm.package.graph_variants import FLOAT32
from embedllm.package.package import Package, open_package
from embedllm.profiling.tuning import search as tuning_choice
from embedllm.profiling.tuning import trial as tuning_trial
from tests.support.openings import device
from tests.support.tuned import SPINNING, remember, row

pytestmark = pytest.mark.usefixtures("records")


@pytest.fixture
def folder(tiny_package: Callable[..., Path]) -> Path:
    return tiny_package()


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> float:
    """Every candidate is tried once, however slow the machine; the seconds to be given."""
    monkeypatch.setattr(tuning_choice, "MOST_ROUNDS", 1)
    monkeypatch.setattr(tuning_trial, "_LEAST_S", 0.001)
    return 1e6


# --- a real measurement


@pytest.mark.slow
def test_the_demo_is_measured_and_remembered() -> None:
    tried: list[str] = []
    tuning = embedllm.tune("demo", seconds=1.5, on_trial=tried.append)
    assert tried[0] == "cpu: default"
    assert {one.device for one in tuning.measured} <= {"cpu", "openvino"}
    for one in tuning.measured:
        assert one.prefill_tokens_s > 0 < one.decode_tokens_s
        assert one.seconds == pytest.approx(256 / one.prefill_tokens_s + 64 / one.decode_tokens_s)
    assert tuning.chosen(tuning.device) in tuning.measured
    assert tuning.unkept == ""
    with embedllm.load("demo") as llm:
        assert llm.device.name == tuning.device
        assert llm.tuned.startswith(f"yes: {tuning.runtime(tuning.device)}; measured on 20")
        assert llm.generate("ls", max_tokens=2).tokens


def test_one_model_is_in_memory_at_a_time_and_all_compute_as_asked(
    folder: Path, opened: list[OpenOptions], once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[Engine] = []
    real = registry.open_engine

    def open_engine(*arguments: object, **options: object) -> Engine:
        for engine in engines:
            with pytest.raises(ValueError, match="closed"):
                engine.open()
        engines.append(real(*arguments, **options))  # type: ignore[arg-type]  # as they were given
        return engines[-1]

    monkeypatch.setattr(registry, "open_engine", open_engine)
    embedllm.tune(folder, seconds=once, exact=True)
    assert len(engines) == len(opened) >= 2
    assert {choices.exact for choices in opened} == {True}
    assert {choices.device.name for choices in opened} == {"cpu", "openvino"}
    assert not any(choices.runtime.floats for choices in opened)  # that is what exact is


def test_a_record_of_loads_with_a_quantized_kv_is_of_those_only(folder: Path, opened: list[OpenOptions]) -> None:
    tuning = embedllm.tune(folder, devices=["openvino"], seconds=1, kv="int8")
    assert {choices.kv for choices in opened} == {"int8"}
    assert (tuning.kv, tuning.device) == ("int8", "")  # "auto" takes none with that KV, the folder has no graph for it
    assert tuning_record.recall(open_package(folder)).tuning is None
    assert tuning_record.recall(open_package(folder), kv="int8").tuning == tuning


def test_a_device_that_cannot_be_opened_is_left_out_with_the_reason(
    folder: Path, once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(choices: OpenOptions) -> Engine:
        raise DeviceError("out of memory")

    driver = find_family("openvino")
    assert driver is not None
    monkeypatch.setitem(drivers._FAMILIES, "openvino", replace(driver, open=refuse))
    tuning = embedllm.tune(folder, seconds=once)
    assert ("openvino, default", "out of memory") in tuning.left_out
    assert {one.device for one in tuning.measured} == {"cpu"}
    with pytest.raises(DeviceUnavailable, match=r"no device could run .*'openvino': out of memory"):
        embedllm.tune(folder, devices=["openvino"], seconds=1)


def test_a_device_is_measured_by_what_a_load_opens_there(
    folder: Path, once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a GPU takes another graph of a folder, or a graph that needs less memory."""
    suited, opened = open_package(folder), []
    estimate_memory, open_engine = memory_estimate.estimate_memory, registry.open_engine

    def estimate(package: Package, *given: Device, **options: Any) -> MemoryEstimate:  # noqa: ANN401 # as it has them
        assert package is suited
        return replace(estimate_memory(package, *given, **options), variants=(FLOAT32.name,))

    def open_it(package: Package, *given: Device, **options: Any) -> Engine:  # noqa: ANN401 # as it has them
        opened.append((package is suited, options["variants"]))
        return open_engine(package, *given, **options)

    monkeypatch.setattr(registry, "suited", lambda *_: suited)
    monkeypatch.setattr(memory_estimate, "estimate_memory", estimate)
    monkeypatch.setattr(registry, "open_engine", open_it)
    embedllm.tune(folder, devices=["cpu"], seconds=once)
    measured = len(opened)
    embedllm.load(folder, device="cpu").close()
    assert 0 < measured < len(opened)
    assert opened == [(True, {"cpu": (FLOAT32.name,)})] * len(opened)


def test_when_nothing_is_there_it_says_what_was_looked_for(folder: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="Tried 'nonsense': not found"):
        embedllm.tune(folder, devices=["nonsense"])


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["cpu", ("cpu",), ["CPU "]])
def test_devices_may_be_one_name_as_in_load(wish: str | list[str], folder: Path, once: float) -> None:
    assert {one.device for one in embedllm.tune(folder, devices=wish, seconds=once).measured} == {"cpu"}


def test_what_names_no_device_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"device is .*expected a name"):
        embedllm.tune(folder, devices=["cpu", ""])


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60"])
def test_a_time_that_cannot_be_meant_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="expected a positive number"):
        embedllm.tune("demo", seconds=seconds)


def test_a_slow_model_is_measured_with_a_shorter_prompt(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package("llama", max_position_embeddings=512))

    def lengths(seconds: float) -> tuple[int, int]:
        found = DeviceChecks(package).check(device("cpu"))
        assert isinstance(found, Usable)
        trial = tuning_trial.Trial(devices={"cpu": (device("cpu"), found)}, exact=False, kv=None, seconds=seconds)
        trial(tuning_trial.Candidate(device="cpu"))
        return len(trial._prompt), trial._steps

    assert lengths(1e6) == (256, 16)
    assert lengths(1e-6) == (32, 8)


def test_a_small_context_is_room_enough(tiny_package: Callable[..., Path]) -> None:
    assert embedllm.tune(tiny_package("llama", max_position_embeddings=16), devices=["cpu"], seconds=1).measured


# --- what is worth trying


@pytest.mark.parametrize(
    ("cores", "usable", "threads"),
    [(2, 2, {1}), (2, 4, {4, 1}), (8, 16, {16, 4}), (1, 1, set()), (1, 2, {2}), (0, 4, {2, 1})],
)
def test_threads_that_are_tried(
    cores: int, usable: int, threads: set[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_trial, "compute_threads", lambda: cores)
    monkeypatch.setattr(tuning_trial, "usable", lambda: usable)
    ways = tuning_trial.ways(open_package(folder), device("openvino"), exact=False)
    assert ways[0] == DEFAULT
    assert {runtime.threads for runtime in ways[1:]} == threads
    assert len(ways) == 1 + len(threads)


@pytest.mark.parametrize(
    ("recipe", "exact", "tries"),
    [(Recipe(bits=4), False, True), (Recipe(bits=4), True, False), (Recipe(bits=8), False, False),
     (Recipe(bits=4, exact=True), False, False)],
)  # fmt: skip
def test_float_activations_are_tried_where_others_are_rounded(
    recipe: Recipe, exact: bool, tries: bool, tiny_package: Callable[..., Path]
) -> None:
    package = open_package(tiny_package("llama", recipe))
    assert any(runtime.floats for runtime in tuning_trial.ways(package, device("cpu"), exact=exact)) == tries
    assert tuning_trial.ways(package, device("reference"), exact=exact) == [DEFAULT]


# --- the command


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["tune", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_shows_what_it_measured_and_forgets_it(folder: Path, records: Path) -> None:
    code, out, error = run(str(folder), "--seconds", "1", "--device", "cpu", "--device", "openvino")
    assert code == 0, error
    assert out.split()[0] == "device"
    assert "cpu" in out
    assert "'auto' takes " in error
    assert len(list(records.iterdir())) == 1
    assert run(str(folder), "--forget")[:2] == (0, "forgotten: 1\n")
    assert json.loads(run(str(folder), "--forget", "--json")[1]) == {"forgotten": 0}


def test_the_command_as_json(folder: Path) -> None:
    code, out, error = run(str(folder), "--seconds", "1", "--device", "openvino", "--json")
    assert code == 0, error
    found = json.loads(out)
    assert found["device"] == ""
    assert found["measured"][0]["runtime"] == {"threads": 0, "spinning": False, "floats": False}


def test_the_command_measures_nothing_that_cannot_be_stored(
    folder: Path, records: Path, opened: list[OpenOptions]
) -> None:
    records.parent.write_text("no folder")
    code, out, error = run(str(folder), "--seconds", "1", "--device", "cpu")
    assert (code, out, opened) == (1, "", [])
    assert f"the results could not be stored, and so nothing was measured: '{records}' cannot be written" in error


def test_the_command_says_that_nothing_is_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_record, "keep", lambda *_: "the disk is full")
    code, out, error = run(str(folder), "--seconds", "1", "--device", "cpu")
    assert code == 1
    assert "cpu" in out
    assert "error: the results were not stored: the disk is full." in error


def test_the_list_of_devices_tells_the_speeds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*arguments: str) -> tuple[str, str]:
        done = CliRunner().invoke(cli, ["devices", *arguments], env={"COLUMNS": "400"})
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    found = remember(folder, "cpu", row("openvino", is_chosen=False), SPINNING)
    said = f"'m' by 1 thread, spinning: 1,000 tokens/s of a prompt, 50 of a reply, measured on {found.date}"
    assert listed("--model", str(folder))[0].count("measured on") == listed("--model", str(folder))[0].count(said) == 1
    entries = {entry["name"]: entry["measured"] for entry in json.loads(listed("-m", str(folder), "--json")[0])}
    assert {name for name, measured in entries.items() if measured is not None} == {"cpu"}
    assert entries["cpu"]["decode_tokens_s"] == 50.0
    assert "measured on" not in listed()[0]  # of the demo nothing is known
    monkeypatch.setattr("embedllm.backends.system.cpu_threads.compute_threads", lambda: 97)
    out, error = listed("--model", str(folder))
    assert "measured on" not in out
    assert "what was measured does not count any more" in error
