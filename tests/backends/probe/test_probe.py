"""Probes: that faults are found, that nothing a probe does harms, and that its outcome is remembered and obeyed."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import embedllm
from embedllm.backends.base import Device
from embedllm.backends.devices import drivers, registry
from embedllm.backends.devices.drivers import find_family
from embedllm.backends.probe import cache as probe_memory
from embedllm.backends.probe import probe
from embedllm.backends.probe import runner as probe_run
from embedllm.backends.probe.probe import Outcome
from embedllm.backends.reference.engine import ReferenceEngine, ReferenceSession
from embedllm.errors import DeviceUnavailable
from embedllm.package.graph_variants import FLOAT16, FLOAT32
from embedllm.package.package import WEIGHTS, open_package
from tests.support.openings import device
from tools import make_probe

ROUGHEST = max(probe._ROUNDED, *probe._TOLERANCES.values())
SUMS_ATOL = 1e-4  # of float32 logits of up to 4 that two processors sum, each in its order
GPU = Device(name="cuda", backend="onnxruntime 1.31.1", description="NVIDIA H200", available=True)
FINE = Outcome(ok=True, variant=FLOAT16.name, max_difference=0.01, seconds=0.5)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")
    monkeypatch.delenv(probe_run.SWITCH, raising=False)
    return tmp_path / "cache"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def writes(text: str, then: str = "") -> str:
    """The code of a probe whose outcome is a text."""
    return f"import sys; open(sys.argv[1], 'w').write({text!r}); {then}"


def printed(outcome: Outcome) -> str:
    return json.dumps(asdict(outcome))


# --- the tiny model


def test_the_shipped_model_is_what_the_tool_makes(tmp_path: Path) -> None:
    """When this fails because graphs changed on purpose: python tools/make_probe.py."""
    make_probe.make(tmp_path / "probe")
    names = {path.name for path in probe.FOLDER.iterdir()}
    assert names == {path.name for path in (tmp_path / "probe").iterdir()}
    for name in names - {"embedllm.json", "tokenizer.json", probe.ANSWERS.name, WEIGHTS}:  # the first two tell versions
        assert (tmp_path / "probe" / name).read_bytes() == (probe.FOLDER / name).read_bytes(), name
    made, shipped = (
        json.loads((at / probe.ANSWERS.name).read_text("utf-8")) for at in (tmp_path / "probe", probe.FOLDER)
    )
    ours, theirs = (load_file(folder / WEIGHTS) for folder in (tmp_path / "probe", probe.FOLDER))
    assert ours.keys() == theirs.keys()
    for name in ours:  # cosines differ in the last bit of a float32 where NumPy has other instructions
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-7 if name.startswith("rope.") else 0)
    assert made["steps"] == shipped["steps"]
    # rounded to 5 decimals, of sums in the order of the processor that made them: 1e-5 apart where this was measured
    np.testing.assert_allclose(made["logits"], shipped["logits"], rtol=0, atol=SUMS_ATOL)


def test_the_shipped_model_is_whole_and_small() -> None:
    open_package(probe.FOLDER).check()
    assert sum(path.stat().st_size for path in probe.FOLDER.iterdir()) <= make_probe.LIMIT
    stored = json.loads(probe.ANSWERS.read_text(encoding="utf-8"))
    assert [(at, tuple(tokens)) for at, tokens in stored["steps"]] == list(probe.STEPS)


def test_the_steps_read_a_prompt_decode_rewind_and_continue() -> None:
    counts = [len(tokens) for _, tokens in probe.STEPS]
    ends = [at + len(tokens) for at, tokens in probe.STEPS]
    assert counts[0] >= 8
    assert counts[1:4] == [1, 1, 1]
    assert probe.STEPS[4][0] < ends[3]  # a rewind
    assert counts[4] > 1  # a second piece
    assert max(counts) > 32
    assert counts[-1] == 1
    assert max(ends) < open_package(probe.FOLDER).context


@pytest.mark.parametrize("name", ["cpu", "reference", "openvino"])
def test_devices_that_compute_rightly_pass(name: str) -> None:
    outcome = probe.run(device(name))
    assert (outcome.ok, outcome.reason) == (True, "")
    assert outcome.max_difference < probe.tolerance(outcome.variant) / 2
    assert outcome.variant == next(iter(probe.variants(device(name))), "")


def test_the_command_that_is_run_writes_the_outcome() -> None:
    outcome = probe_run.in_process(probe_run.command(device("cpu")))
    assert (outcome.ok, outcome.variant) == (True, FLOAT32.name)


def test_the_command_says_why_a_device_is_not_there() -> None:
    gone = Device(name="tpu", backend="", description="", available=True)
    outcome = probe_run.in_process(probe_run.command(gone))
    assert not outcome.ok
    assert "did not find the device: not found by onnxruntime" in outcome.reason


# --- faults

Step = Callable[..., np.ndarray]


def _unrotated(session: ReferenceSession, x: np.ndarray, rope: int | None) -> np.ndarray:
    return x


def _rotated_in_pairs(session: ReferenceSession, x: np.ndarray, rope: int | None) -> np.ndarray:
    here = slice(session.position, session.position + x.shape[1])
    cos, sin = (session._engine.tensor(f"rope.{part}")[here] for part in ("cos", "sin"))
    turned = x.copy()
    turned[..., 0::2], turned[..., 1::2] = (
        x[..., 0::2] * cos - x[..., 1::2] * sin,
        x[..., 1::2] * cos + x[..., 0::2] * sin,
    )
    return turned


def _one_place_late(session: ReferenceSession, x: np.ndarray, rope: int | None) -> np.ndarray:
    session.position += session.position > 0
    try:
        return ROTATED(session, x, rope)
    finally:
        session.position -= session.position > 0


def _without_norms(session: ReferenceSession, x: np.ndarray, linear: object, heads: int, norm: object) -> np.ndarray:
    return HEADS(session, x, linear, heads, None)  # type: ignore[arg-type]  # passed on


def _forgetful(session: ReferenceSession, index: int, attention: object, x: np.ndarray) -> np.ndarray:
    """A step sees nothing of one earlier token."""
    if session.position:
        key, value = session._kv[index]
        session._kv[index] = key, np.concatenate([value[:, :4], np.zeros_like(value[:, 4:5]), value[:, 5:]], axis=1)
    return ATTENTION(session, index, attention, x)  # type: ignore[arg-type]  # passed on


def _without_past(session: ReferenceSession, index: int, attention: object, x: np.ndarray) -> np.ndarray:
    """A second piece sees nothing of what came before, as DirectML's attention does it."""
    if len(x) == 1 or not session.position:
        return ATTENTION(session, index, attention, x)  # type: ignore[arg-type]  # passed on
    (key, value), at = session._kv[index], session.position
    session._kv[index], session.position = (key[:, :0], value[:, :0]), 0
    seen = ATTENTION(session, index, attention, x)  # type: ignore[arg-type]  # passed on
    new_key, new_value = session._kv[index]
    session._kv[index] = np.concatenate([key, new_key], axis=1), np.concatenate([value, new_value], axis=1)
    session.position = at
    return seen


ROTATED, HEADS, ATTENTION = ReferenceSession._rotated, ReferenceSession._heads, ReferenceSession._attention
FAULTS: dict[str, tuple[str, Step]] = {
    "no rotation": ("_rotated", _unrotated),
    "rotation of neighbours": ("_rotated", _rotated_in_pairs),
    "rotation at the next place": ("_rotated", _one_place_late),
    "no q and k norms": ("_heads", _without_norms),
    "a token that is not seen": ("_attention", _forgetful),
    "no past for a second piece": ("_attention", _without_past),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_far_beyond_every_tolerance(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferenceSession, *FAULTS[fault])
    with closing(ReferenceEngine(open_package(probe.FOLDER))) as engine:
        found = probe.answers(engine)
    assert probe.largest_difference(found, probe.known_answers()) > 2 * ROUGHEST
    outcome = probe.run(device("reference"))
    assert not outcome.ok
    assert "probe mismatch max|d|=" in outcome.reason
    assert "EMBEDLLM_PROBE=off" in outcome.remedy


@pytest.mark.slow
def test_one_wrong_number_fails_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [list(row) for row in probe.known_answers()]
    known[3][17] += 0.7
    monkeypatch.setattr(probe, "known_answers", lambda: known)
    for found in (probe.run(device("cpu")), probe_run.in_thread(device("cpu"))):
        assert not found.ok
        assert found.is_wrong
        assert f"'{FLOAT32.name}': probe mismatch max|d|=0." in found.reason


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_not_a_number_is_wrong(place: int) -> None:
    row = [0.0, 0.0]
    row[place] = float("nan")
    assert not probe.largest_difference([row], [[0.0, 0.0]]) <= ROUGHEST


@pytest.mark.slow
def test_a_graph_that_fails_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU does not have the q and k norms of the float16 graph's attention."""
    cpu = drivers.device_family(device("cpu"))
    both = replace(cpu, capabilities=replace(cpu.capabilities, variants=(FLOAT16.name, FLOAT32.name), probed=True))
    monkeypatch.setitem(drivers._FAMILIES, "cpu", both)
    outcome = probe.run(device("cpu"))
    assert (outcome.ok, outcome.variant) == (True, FLOAT32.name)
    assert outcome.reason.startswith(f"'{FLOAT16.name}': ")
    assert outcome.reason.endswith(f"; '{FLOAT32.name}' is used")
    assert probe_run.variants(device("cpu"), outcome) == (FLOAT32.name,)
    assert probe_run.variants(device("cpu"), replace(outcome, variant=FLOAT16.name)) == both.capabilities.variants
    assert probe_run.variants(device("cpu"), None) == ()


# --- processes and threads


def test_a_probe_that_crashes_has_failed() -> None:
    outcome = probe_run.in_process([sys.executable, "-c", "import os; os.abort()"])
    assert not outcome.ok
    assert outcome.reason.startswith("the probe crashed (")
    if os.name == "posix":
        assert "SIGABRT" in outcome.reason


def test_a_probe_that_raises_says_what() -> None:
    outcome = probe_run.in_process([sys.executable, "-c", "raise OSError('no such driver')"])
    assert (outcome.ok, outcome.reason) == (False, "the probe crashed (exit code 1): OSError: no such driver")


@pytest.mark.parametrize("text", ["", "fine", "{}", '{"ok": true, "colour": "red"}', "[1]"])
def test_a_probe_that_writes_something_else_has_failed(text: str) -> None:
    outcome = probe_run.in_process(python(writes(text)))
    assert not outcome.ok
    assert "crashed (exit code 0)" in outcome.reason


def test_what_a_driver_prints_is_no_matter() -> None:
    code = writes(printed(FINE), "import os; os.write(1, b'closing\\n'); os.write(2, b'bye\\n')")
    assert probe_run.in_process(python(code)) == FINE


def test_a_probe_that_crashes_when_it_is_done_has_failed() -> None:
    outcome = probe_run.in_process(python(writes(printed(FINE), "import os; os.abort()")))
    assert not outcome.ok
    assert outcome.reason.startswith("the probe crashed (")


def test_a_process_that_cannot_be_started_gives_way_to_a_thread(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_run, "command", lambda device: [str(tmp_path / "python")])
    monkeypatch.setattr(probe, "run", lambda device: FINE)
    assert probe_run.outcome_for(GPU) == FINE


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is stuck in a driver. That the wait is bounded, and the probe's limit is what is told."""
    monkeypatch.setattr(probe_run, "_END_S", 0.1)
    killed: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: killed.append(process))
    try:
        outcome = probe_run.in_process(python("import time; time.sleep(600)"), limit_s=0.1)
    finally:
        monkeypatch.undo()
        for process in killed:
            process.kill()
            process.wait()
    assert len(killed) == 1
    assert outcome.reason == "the probe took longer than 0.1 s"


def test_an_exception_in_a_thread_is_no_time_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probe, "FOLDER", tmp_path / "nothing")
    outcome = probe_run.in_thread(GPU)
    assert not outcome.ok
    assert outcome.reason.startswith("the probe failed: ")
    assert str(tmp_path / "nothing") in outcome.reason


@pytest.mark.parametrize("lacking", ["FOLDER", "ANSWERS"])
def test_without_the_tiny_model_a_device_is_used_unprobed(
    lacking: str, runs: Callable[[], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(probe, lacking, tmp_path / "nothing")
    assert probe_run.outcome_for(GPU) is None
    assert probe_run.remembered(GPU) is None
    assert "'cuda' is not probed: there is no '" in caplog.text
    assert runs() == 0


def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen.__init__

    def note(process: subprocess.Popen[bytes], *args: object, **options: object) -> None:
        begin(process, *args, **options)  # type: ignore[arg-type]  # as they came
        started.append(process)

    monkeypatch.setattr(subprocess.Popen, "__init__", note)
    outcome = probe_run.in_process(python("import time; time.sleep(600)"), limit_s=0.2)
    assert (outcome.ok, outcome.reason) == (False, "the probe took longer than 0.2 s")
    assert "EMBEDLLM_PROBE_TIMEOUT" in outcome.remedy
    (process,) = started
    assert process.returncode is not None  # it was waited for


def test_a_probe_that_hangs_in_a_thread_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(probe, "run", lambda device: ended.wait())
    outcome = probe_run.in_thread(GPU, limit_s=0.05)
    ended.set()
    assert (outcome.ok, outcome.reason) == (False, "the probe took longer than 0.05 s")


@pytest.mark.parametrize(
    ("executable", "frozen", "system", "can"),
    [
        ("python3", False, "linux", True),
        ("python3.13t", False, "linux", True),
        ("pythonw.exe", False, "win32", True),
        ("Python.EXE", False, "win32", True),
        ("pypy3", False, "linux", True),
        ("PythonIDE.exe", False, "win32", False),
        ("python-shell", False, "linux", False),
        ("soffice.bin", False, "linux", False),
        ("my-application", True, "linux", False),
        ("python3", True, "linux", False),
        ("", False, "linux", False),
        ("python", False, "emscripten", False),
    ],
)
def test_a_process_is_started_where_there_is_a_python_to_start(
    executable: str, frozen: bool, system: str, can: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / executable) if executable else "")
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    monkeypatch.setattr(sys, "platform", system)
    assert not probe_run.can_start_python()  # there is no such file
    if executable:
        (tmp_path / executable).touch()
    assert probe_run.can_start_python() == can


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "inf"])
def test_a_time_limit_that_is_none_is_a_slip_of_the_caller(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe_run.LIMIT, text)
    with pytest.raises(ValueError, match=f"EMBEDLLM_PROBE_TIMEOUT is '{text}'; expected seconds"):
        probe_run.limit()


# --- what is remembered


@pytest.fixture
def runs(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a probe was run, whose outcome is FINE."""
    log = tmp_path / "runs"
    log.touch()
    code = writes(printed(FINE), f"open({str(log)!r}, 'a').write('x')")
    monkeypatch.setattr(probe_run, "command", lambda device: [sys.executable, "-c", code])
    return lambda: len(log.read_text())


def test_an_outcome_is_remembered(runs: Callable[[], int], cache: Path) -> None:
    assert probe_run.remembered(GPU) is None
    assert [probe_run.outcome_for(GPU) for _ in range(3)] == [FINE] * 3
    assert runs() == 1
    assert probe_run.remembered(GPU) == FINE
    assert len([*cache.rglob("*")]) == 2  # a folder and a file; nothing half-written beside it


def test_an_outcome_is_found_anew_when_asked(runs: Callable[[], int]) -> None:
    for _ in range(2):
        probe_run.outcome_for(GPU, again=True)
    assert runs() == 2


@pytest.mark.parametrize("change", [{"name": "cuda:1"}, {"description": "NVIDIA H100"}, {"backend": "onnxruntime 2"}])
def test_another_device_or_version_is_probed_for_itself(change: dict[str, str], runs: Callable[[], int]) -> None:
    probe_run.outcome_for(GPU)
    probe_run.outcome_for(replace(GPU, **change))
    assert runs() == 2


@pytest.mark.parametrize("what", ["hardware.driver_stamp", "__version__"])
def test_another_driver_or_version_of_this_library_is_probed_anew(
    what: str, runs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_run.outcome_for(GPU)
    changed = "99" if what == "__version__" else lambda: "another driver"
    monkeypatch.setattr(f"embedllm.backends.probe.cache.{what}", changed)
    probe_run.outcome_for(GPU)
    assert runs() == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', '{"key": {}, "outcome": {}}', "\xff"])
def test_an_unreadable_memory_is_none(damage: str, runs: Callable[[], int], cache: Path) -> None:
    probe_run.outcome_for(GPU)
    (file,) = (path for path in cache.rglob("*") if path.is_file())
    file.write_bytes(damage.encode("latin-1"))
    assert probe_run.outcome_for(GPU) == FINE
    assert runs() == 2
    assert probe_run.remembered(GPU) == FINE


def test_without_a_place_to_write_a_probe_still_counts(runs: Callable[[], int], cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert probe_run.outcome_for(GPU) == FINE
    assert probe_run.outcome_for(GPU) == FINE
    assert runs() == 2


def test_the_cpu_is_not_probed_and_nothing_is_written(runs: Callable[[], int], cache: Path) -> None:
    names = ("cpu", "reference", "openvino", "npu-on-cpu")
    for found in registry.devices():
        if found.name in names:
            assert probe_run.outcome_for(found) is None
    assert runs() == 0
    assert not cache.exists()


@pytest.mark.parametrize("value", ["off", "OFF", "0", " no "])
def test_probes_can_be_switched_off(value: str, runs: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe_run.SWITCH, value)
    assert probe_run.outcome_for(GPU) is None
    assert probe_run.remembered(GPU) is None
    assert runs() == 0


WRONG = probe.failed("failed: mismatch", is_wrong=True)
LATE = probe.failed("took longer than 5 s", seconds=5.0, ran_out_of_time=True)


def test_wrong_numbers_are_remembered(cache: Path) -> None:
    probe_memory.keep(GPU, WRONG)
    assert probe_run.remembered(GPU) == WRONG


def test_what_may_pass_is_tried_again(runs: Callable[[], int], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without memory for the moment, a library that is installed later; also after it was once right."""
    probe_memory.keep(GPU, FINE)
    probe_memory.keep(GPU, probe.failed("failed: out of memory"))
    assert probe_run.remembered(GPU) is None
    assert probe_run.outcome_for(GPU) == FINE
    assert runs() == 1


def test_after_a_probe_that_hung_a_longer_limit_tries_again(
    runs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_memory.keep(GPU, LATE)
    monkeypatch.setenv(probe_run.LIMIT, "5")
    assert probe_run.remembered(GPU) == probe_run.outcome_for(GPU) == LATE
    monkeypatch.setenv(probe_run.LIMIT, "600")
    assert probe_run.outcome_for(GPU) == FINE
    assert runs() == 1


def test_a_probe_that_hung_is_tried_again_after_a_while(
    runs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(probe_run.LIMIT, "5")
    probe_memory.keep(GPU, LATE)
    now = probe_memory.time.time()
    monkeypatch.setattr(probe_memory.time, "time", lambda: now + probe_memory.HUNG_KEPT_S + 1)
    assert probe_run.remembered(GPU) is None
    assert probe_run.outcome_for(GPU) == FINE
    assert runs() == 1


def test_whoever_waits_for_the_first_probe_is_told(runs: Callable[[], int], caplog: pytest.LogCaptureFixture) -> None:
    """At a level that an application sees which did not ask for details."""
    with caplog.at_level(logging.WARNING, logger="embedllm"):
        probe_run.outcome_for(GPU)
        assert "trying 'cuda' for the first time, with a tiny model; this may take up to 120 s" in caplog.text
        caplog.clear()
        probe_run.outcome_for(GPU)
        probe_run.outcome_for(GPU, again=True)
        assert caplog.text == ""


def test_the_probes_of_one_load_have_one_time_limit(
    cache: Path, monkeypatch: pytest.MonkeyPatch, runs: Callable[[], int]
) -> None:
    monkeypatch.setenv(probe_run.LIMIT, "0.2")
    hangs = replace(GPU, name="webgpu")
    right = probe_run.command(GPU)
    sleeps = python("import time; time.sleep(600)")
    monkeypatch.setattr(probe_run, "command", lambda device: sleeps if device == hangs else right)
    probes = probe_run.Probes()
    late, none_left = probes.outcome_for(hangs), probes.outcome_for(GPU)
    assert late is not None
    assert late.ran_out_of_time
    assert none_left is not None
    assert none_left.reason == "the probe was not begun: those of other devices took all the time of one load"
    assert "EMBEDLLM_PROBE_TIMEOUT" in none_left.remedy
    assert runs() == 0
    monkeypatch.setenv(probe_run.LIMIT, "60")
    assert probe_run.outcome_for(GPU) == FINE  # the next load has time for it
    monkeypatch.setenv(probe_run.LIMIT, "0.2")
    again = probe_run.Probes()
    assert again.outcome_for(hangs) == late  # and spends none on what hung
    assert again.outcome_for(GPU) == FINE


def test_gpus_and_plug_ins_are_probed() -> None:
    for name in ("cuda", "cuda:1", "webgpu", "directml", "openvino-gpu", "openvino-gpu.1", "openvino-ep", "qnn",
                 "plugin:/a/library+that.so"):  # fmt: skip
        assert registry.is_probed(replace(GPU, name=name)), name
    for name in ("cpu", "openvino", "openvino:AUTO", "npu", "npu-on-cpu", "reference", "openvino-gpu+cpu"):
        assert not registry.is_probed(replace(GPU, name=name)), name


# --- what comes of it


@pytest.fixture
def doubtful(cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """OpenVINO's CPU, which is there, as a device that has to be probed, and whose probe crashes."""
    openvino = find_family("openvino")
    assert openvino is not None
    monkeypatch.setitem(
        drivers._FAMILIES, "openvino", replace(openvino, capabilities=replace(openvino.capabilities, probed=True))
    )
    monkeypatch.setattr(probe_run, "command", lambda device: [sys.executable, "-c", "import os; os.abort()"])
    return "openvino"


def test_an_explicit_device_whose_probe_fails_is_refused_with_the_way_out(
    doubtful: str, tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceUnavailable, match=r"'openvino': the probe crashed .*EMBEDLLM_PROBE=off") as caught:
        embedllm.load(tiny_package(), device=doubtful)
    ((name, reason, remedy),) = caught.value.tried
    assert (name, reason.partition(" (")[0]) == ("openvino", "the probe crashed")
    assert "EMBEDLLM_PROBE=off" in remedy
    monkeypatch.setenv("EMBEDLLM_PROBE", "off")
    with embedllm.load(tiny_package(), device=doubtful) as model:
        assert model.device.name == "openvino"


def test_a_list_goes_on_after_a_probe_that_fails_and_says_so(
    doubtful: str, tiny_package: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="embedllm"):
        model = embedllm.load(tiny_package(), device=[doubtful, "cpu"])
    with model:
        assert model.device.name == "cpu"
    assert "; not openvino: the probe crashed (" in caplog.text


def test_a_device_that_passes_is_used(
    cache: Path, tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real probe, in a process of its own, which knows nothing of what was changed here."""
    openvino = find_family("openvino")
    assert openvino is not None
    monkeypatch.setitem(
        drivers._FAMILIES, "openvino", replace(openvino, capabilities=replace(openvino.capabilities, probed=True))
    )
    with embedllm.load(tiny_package(), device=["openvino", "cpu"]) as model:
        assert model.device.name == "openvino"
        remembered = probe_run.remembered(model.device)
    assert remembered is not None
    assert (remembered.ok, remembered.variant) == (True, "openvino")


def test_on_a_machine_with_a_cpu_only_auto_probes_nothing_and_writes_nothing(
    tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    code = (
        "import sys, embedllm\n"
        "embedllm.load(sys.argv[1]).generate('a', max_tokens=1)\n"
        "names = ('embedllm.backends.probe.probe', 'openvino', 'platformdirs')\n"
        "print(*(name in sys.modules for name in names))"
    )
    if any(found.available for found in registry.devices() if found.name in ("cuda", "webgpu", "openvino-gpu")):
        pytest.skip("this machine has a GPU")
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, str(tiny_package())], capture_output=True, text=True,
                          env=environment, check=True)  # fmt: skip
    assert done.stdout.split() == ["False", "False", "False"]
    assert [*tmp_path.iterdir()] == []
