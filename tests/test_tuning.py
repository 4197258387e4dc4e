"""tune() on real models, what is remembered of it, and what load() makes of that."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import embedllm
from embedllm import tuning_choice, tuning_record, tuning_trial
from embedllm.backends import drivers, hardware, registry
from embedllm.backends.base import Engine
from embedllm.backends.drivers import Choices, driver_of
from embedllm.cli import cli
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.export import Recipe
from embedllm.knobs import USUAL, Knobs
from embedllm.package import Package, open_package
from embedllm.tuning import Measured, Tuning
from tests.openings import device


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, in which nothing is remembered yet."""
    monkeypatch.delenv("EMBEDLLM_TUNED")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")
    return tmp_path / "cache" / "tuned"


@pytest.fixture
def folder(tiny_package: Callable[..., Path]) -> Path:
    return tiny_package()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Choices]:
    """What devices are opened with."""
    given: list[Choices] = []

    def watch(name: str) -> None:
        driver = driver_of(name)
        assert driver is not None

        def open_it(choices: Choices) -> Engine:
            given.append(choices)
            return driver.open(choices)

        monkeypatch.setitem(drivers._DRIVERS, name, replace(driver, open=open_it))

    for name in ("cpu", "openvino"):
        watch(name)
    return given


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> float:
    """Every candidate is tried once, however slow the machine; the seconds to be given."""
    monkeypatch.setattr(tuning_choice, "MOST_ROUNDS", 1)
    monkeypatch.setattr(tuning_trial, "_LEAST_S", 0.001)
    return 1e6


def row(name: str, knobs: Knobs = USUAL, *, is_chosen: bool = True) -> Measured:
    return Measured(device=name, knobs=knobs, prefill_tokens_s=1000.0, decode_tokens_s=50.0, seconds=1.5, ratio=0.9,
                    rounds=3, is_chosen=is_chosen)  # fmt: skip


def remember(folder: Path, device: str, *rows: Measured, exact: bool = False, kv: str | None = None) -> Tuning:
    """As if tune() had found this."""
    tuning = Tuning(model="m", exact=exact, kv=kv, device=device, measured=rows, left_out=(("cuda", "none"),),
                    took_s=1.0, at=1_790_000_000.0)  # fmt: skip
    assert tuning_record.keep(open_package(folder), tuning) == ""
    return tuning


SPINNING = row("cpu", Knobs(threads=1, spinning=True))


# --- a real measurement


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
        assert llm.tuned.startswith(f"yes: {tuning.knobs(tuning.device)}; measured on 20")
        assert llm.generate("ls", max_tokens=2).tokens


def test_one_model_is_in_memory_at_a_time_and_all_compute_as_asked(
    folder: Path, opened: list[Choices], once: float, monkeypatch: pytest.MonkeyPatch
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
    assert not any(choices.knobs.floats for choices in opened)  # that is what exact is


def test_a_record_of_loads_with_a_quantized_kv_is_of_those_only(folder: Path, opened: list[Choices]) -> None:
    tuning = embedllm.tune(folder, devices=["openvino"], seconds=1, kv="int8")
    assert {choices.kv for choices in opened} == {"int8"}
    assert (tuning.kv, tuning.device) == ("int8", "")  # "auto" takes none with that KV, the folder has no graph for it
    assert tuning_record.recall(open_package(folder)).tuning is None
    assert tuning_record.recall(open_package(folder), kv="int8").tuning == tuning


def test_a_device_that_cannot_be_opened_is_left_out_with_the_reason(
    folder: Path, once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(choices: Choices) -> Engine:
        raise DeviceError("out of memory")

    driver = driver_of("openvino")
    assert driver is not None
    monkeypatch.setitem(drivers._DRIVERS, "openvino", replace(driver, open=refuse))
    tuning = embedllm.tune(folder, seconds=once)
    assert ("openvino, default", "out of memory") in tuning.left_out
    assert {one.device for one in tuning.measured} == {"cpu"}
    with pytest.raises(DeviceUnavailable, match=r"no device could run .*'openvino': out of memory"):
        embedllm.tune(folder, devices=["openvino"], seconds=1)


def test_when_nothing_is_there_it_says_what_was_looked_for(folder: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="Tried 'nonsense': not found"):
        embedllm.tune(folder, devices=["nonsense"])


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60"])
def test_a_time_that_cannot_be_meant_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="expected a positive number"):
        embedllm.tune("demo", seconds=seconds)


def test_a_slow_model_is_measured_with_a_shorter_prompt(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package("llama", max_position_embeddings=512))

    def lengths(seconds: float) -> tuple[int, int]:
        trial = tuning_trial.Trial(package=package, devices={"cpu": device("cpu")}, dialects={}, exact=False, kv=None,
                                   seconds=seconds)  # fmt: skip
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
    assert ways[0] == USUAL
    assert {knobs.threads for knobs in ways[1:]} == threads
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
    assert any(knobs.floats for knobs in tuning_trial.ways(package, device("cpu"), exact=exact)) == tries
    assert tuning_trial.ways(package, device("reference"), exact=exact) == [USUAL]


# --- what load() makes of it


def test_auto_takes_the_device_that_was_fastest(folder: Path, opened: list[Choices]) -> None:
    remember(folder, "openvino", row("cpu"), row("openvino", Knobs(threads=1)))
    with embedllm.load(folder) as llm:
        assert llm.device.name == "openvino"
        assert llm.tuned == "yes: 1 thread; measured on 2026-09-21: 1,000 tokens/s of a prompt, 50 of a reply"
    assert [choices.knobs for choices in opened] == [Knobs(threads=1)]
    with embedllm.load(folder, device=["no such", "auto"]) as llm:
        assert llm.device.name == "openvino"


def test_a_device_that_is_asked_for_runs_as_it_was_fastest(folder: Path, opened: list[Choices]) -> None:
    remember(folder, "openvino", row("cpu", is_chosen=False), SPINNING, row("openvino"))
    with embedllm.load(folder, device="cpu") as llm:
        assert llm.device.name == "cpu"
    with embedllm.load(folder, device="reference") as llm:
        assert llm.tuned == "no: reference was not measured"
    assert [choices.knobs for choices in opened] == [SPINNING.knobs]


def test_threads_that_are_given_go_before_the_record(folder: Path, opened: list[Choices]) -> None:
    remember(folder, "cpu", SPINNING)
    with embedllm.load(folder, threads=2) as llm:
        assert llm.tuned == "no: threads were given"
    assert [choices.knobs for choices in opened] == [Knobs(threads=2)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tuned": False}, "tuned=False"),
        ({"exact": True}, "not measured"),
        ({"kv": "int8", "device": "openvino"}, "not measured"),
        ({"adapters": {}}, "nothing is measured with adapters or OpenVINOOptions"),
        ({"openvino": embedllm.OpenVINOOptions()}, "nothing is measured with adapters or OpenVINOOptions"),
    ],
)
def test_loads_of_another_kind_do_not_use_it(
    options: dict[str, object], reason: str, folder: Path, opened: list[Choices]
) -> None:
    remember(folder, "openvino", SPINNING, row("openvino", Knobs(threads=1)))
    with embedllm.load(folder, **options) as llm:  # type: ignore[arg-type]  # each is right
        assert llm.tuned == f"no: {reason}"
        assert llm.device.name == options.get("device", "cpu")
    assert [choices.knobs for choices in opened] == [USUAL]


def test_an_exact_load_uses_what_was_measured_exact(folder: Path, opened: list[Choices]) -> None:
    remember(folder, "cpu", row("cpu", Knobs(floats=True)))
    remember(folder, "cpu", row("cpu", Knobs(threads=1)), exact=True)
    embedllm.load(folder, exact=True).close()
    assert [(choices.exact, choices.knobs) for choices in opened] == [(True, Knobs(threads=1))]


def test_the_environment_switches_it_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(folder, "openvino", SPINNING, row("openvino"))
    monkeypatch.setenv("EMBEDLLM_TUNED", "off")
    with embedllm.load(folder) as llm:
        assert (llm.device.name, llm.tuned) == ("cpu", "no: EMBEDLLM_TUNED=off")


def test_a_device_that_is_not_there_any_more_gives_way_to_the_others(
    folder: Path, opened: list[Choices], caplog: pytest.LogCaptureFixture
) -> None:
    remember(folder, "cuda", SPINNING, row("cuda"))
    with caplog.at_level(logging.INFO, logger="embedllm"), embedllm.load(folder) as llm:
        assert llm.device.name == "cpu"
    assert [choices.knobs for choices in opened] == [SPINNING.knobs]
    assert caplog.text.count("not cuda: ") == 1  # it is not tried twice


def test_a_draft_model_runs_on_the_same_device(folder: Path, opened: list[Choices]) -> None:
    remember(folder, "openvino", SPINNING, row("openvino"))
    embedllm.load(folder, draft=folder).close()
    assert [choices.device.name for choices in opened] == ["openvino", "openvino"]


def test_what_was_computed_with_other_roundings_is_told_apart(folder: Path) -> None:
    with embedllm.load(folder) as llm:
        untuned = llm.kind
    remember(folder, "cpu", row("cpu", Knobs(threads=1)))
    with embedllm.load(folder) as llm:
        assert llm.kind == untuned  # threads change no number that counts
    remember(folder, "cpu", row("cpu", Knobs(floats=True)))
    with embedllm.load(folder) as llm:
        assert llm.kind != untuned


def test_a_load_that_nothing_was_measured_for_writes_nothing(folder: Path, memory: Path) -> None:
    with embedllm.load(folder) as llm:
        assert llm.tuned == "no: not measured"
    assert not memory.exists()


# --- what is remembered


def recalled(folder: Path) -> tuning_record.Recalled:
    return tuning_record.recall(open_package(folder))


def test_a_record_comes_back_as_it_was_and_goes_when_it_is_forgotten(folder: Path, memory: Path) -> None:
    tuning = remember(folder, "cpu", SPINNING)
    remember(folder, "cpu", SPINNING, exact=True)
    assert recalled(folder).tuning == tuning
    assert embedllm.forget_tuning(folder) == 2
    assert list(memory.iterdir()) == []
    assert recalled(folder).reason == "not measured"
    assert embedllm.forget_tuning(folder) == 0


def test_another_model_knows_nothing_of_it(folder: Path, tiny_package: Callable[..., Path]) -> None:
    remember(folder, "cpu", SPINNING)
    other = tiny_package("llama")
    assert recalled(other).reason == "not measured"
    assert embedllm.forget_tuning(other) == 0
    assert recalled(folder).tuning is not None


def test_a_copy_of_the_folder_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    import shutil

    tuning = remember(folder, "cpu", SPINNING)
    assert recalled(Path(shutil.copytree(folder, tmp_path / "copy"))).tuning == tuning


def _drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "drivers", lambda: ["a new driver"])


def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedllm.backends.threads.compute_threads", lambda: 97)


def _runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedllm.backends.distributions.versions_of", lambda names: {"openvino": "1.2"})


def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedllm, "__version__", "99.0")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_drivers, "graphics drivers ("),
        (_cores, "now 97 of "),
        (_runtime, "now openvino 1.2)"),
        (_library, f"embedllm ({embedllm.__version__}, now 99.0)"),
    ],
)
def test_what_it_depends_on_is_told_when_it_changed(
    change: Callable[[pytest.MonkeyPatch], None],
    says: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    remember(folder, "openvino", SPINNING, row("openvino"))
    change(monkeypatch)
    with caplog.at_level(logging.INFO, logger="embedllm"), embedllm.load(folder) as llm:
        assert llm.device.name == "cpu"
        assert llm.tuned.startswith("no: what was measured does not count any more, because of ")
        assert says in llm.tuned
        assert llm.tuned.endswith(f"measure again with: embedllm tune {folder}")
    assert says in caplog.text


def test_another_processor_has_a_record_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = remember(folder, "cpu", SPINNING)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(hardware, "processor", lambda: "another one")
        assert recalled(folder).reason == "not measured"
        remember(folder, "cpu", row("cpu"))
    assert recalled(folder).tuning == tuning


def _changed(entry: dict[str, object], path: Sequence[str | int], value: object) -> str:
    place = entry
    for step in path[:-1]:
        place = place[step]  # type: ignore[assignment, index]  # by the tests below
    place[path[-1]] = value  # type: ignore[index]
    return json.dumps(entry)


FIRST = ("tuning", "measured", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("tuning",), None),
        (("tuning", "device"), "npu"),
        (("tuning", "exact"), True),
        (("tuning", "at"), "yesterday"),
        (("tuning", "measured"), {}),
        (("tuning", "left_out"), 3),
        (FIRST, "cpu"),
        ((*FIRST, "knobs"), {"threads": 5000}),
        ((*FIRST, "knobs"), {"kv": "int4"}),
        ((*FIRST, "knobs", "floats"), 1),
        ((*FIRST, "decode_tokens_s"), 0),
        ((*FIRST, "unknown"), 0),
        ((*FIRST, "is_chosen"), "yes"),
    ],
)
def test_a_record_that_makes_no_sense_is_not_used_and_said(
    path: Sequence[str | int], value: object, folder: Path, memory: Path
) -> None:
    remember(folder, "cpu", SPINNING)
    (file,) = memory.iterdir()
    file.write_text(_changed(json.loads(file.read_text()), path, value))
    with embedllm.load(folder) as llm:
        assert llm.device.name == "cpu"
        assert llm.tuned.startswith("no: ")
        assert llm.tuned.endswith(f"measure again with: embedllm tune {folder}")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_damaged_file_is_not_used_and_written_anew(content: bytes, folder: Path, memory: Path) -> None:
    remember(folder, "cpu", SPINNING)
    (file,) = memory.iterdir()
    file.write_bytes(content)
    assert recalled(folder).tuning is None
    assert "cannot be read" in recalled(folder).reason
    tuning = remember(folder, "cpu", SPINNING)
    assert recalled(folder).tuning == tuning


def test_where_nothing_can_be_written_the_measurement_is_told_all_the_same(folder: Path, memory: Path) -> None:
    memory.parent.parent.mkdir(exist_ok=True)
    memory.parent.write_text("a file where the folder should be")  # root may write into any folder
    tuning = embedllm.tune(folder, devices=["cpu"], seconds=1)
    assert tuning.measured
    assert "cannot be written" in tuning.unkept
    with embedllm.load(folder) as llm:
        assert llm.tuned.startswith("no: ")


def test_writers_at_once_leave_one_whole_record(folder: Path, memory: Path) -> None:
    package: Package = open_package(folder)
    tunings = [Tuning(model=f"m{at}", exact=False, kv=None, device="cpu", measured=(SPINNING,) * 50, left_out=(),
                      took_s=1.0, at=1.0) for at in range(8)]  # fmt: skip
    seen: list[Tuning | None] = []

    def write(tuning: Tuning) -> None:
        for _ in range(20):
            assert tuning_record.keep(package, tuning) == ""
            seen.append(tuning_record.recall(package).tuning)

    writers = [threading.Thread(target=write, args=[tuning]) for tuning in tunings]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert len(seen) == 160
    assert all(tuning in tunings for tuning in seen)
    assert len(list(memory.iterdir())) == 1


# --- the command


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["tune", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_shows_what_it_measured_and_forgets_it(folder: Path, memory: Path) -> None:
    code, out, error = run(str(folder), "--seconds", "1", "--device", "cpu", "--device", "openvino")
    assert code == 0, error
    assert out.split()[0] == "device"
    assert "cpu" in out
    assert "'auto' takes " in error
    assert len(list(memory.iterdir())) == 1
    assert run(str(folder), "--forget")[:2] == (0, "forgotten: 1\n")
    assert json.loads(run(str(folder), "--forget", "--json")[1]) == {"forgotten": 0}


def test_the_command_as_json(folder: Path) -> None:
    code, out, error = run(str(folder), "--seconds", "1", "--device", "openvino", "--json")
    assert code == 0, error
    found = json.loads(out)
    assert found["device"] == ""
    assert found["measured"][0]["knobs"] == {"threads": 0, "spinning": False, "floats": False}


def test_the_command_says_that_nothing_is_remembered(folder: Path, memory: Path) -> None:
    memory.parent.write_text("no folder")
    code, out, error = run(str(folder), "--seconds", "1", "--device", "cpu")
    assert code == 1
    assert "cpu" in out
    assert "error: this is not remembered: " in error


def test_the_list_of_devices_tells_the_speeds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*arguments: str) -> tuple[str, str]:
        done = CliRunner().invoke(cli, ["devices", *arguments], env={"COLUMNS": "400"})
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    remember(folder, "cpu", row("openvino", is_chosen=False), SPINNING)
    said = "'m' by 1 thread, spinning: 1,000 tokens/s of a prompt, 50 of a reply, measured on 2026-09-21"
    assert listed("--model", str(folder))[0].count("measured on") == listed("--model", str(folder))[0].count(said) == 1
    entries = {entry["name"]: entry["measured"] for entry in json.loads(listed("-m", str(folder), "--json")[0])}
    assert {name for name, measured in entries.items() if measured is not None} == {"cpu"}
    assert entries["cpu"]["decode_tokens_s"] == 50.0
    assert "measured on" not in listed()[0]  # of the demo nothing is known
    _cores(monkeypatch)
    out, error = listed("--model", str(folder))
    assert "measured on" not in out
    assert "what was measured does not count any more" in error
