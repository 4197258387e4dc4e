"""What is remembered of tune(), and what load() makes of it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import embedllm
from embedllm.backends.base import OpenOptions
from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.backends.system import hardware
from embedllm.loading import tuning_record
from embedllm.loading.tuning_results import Tuning
from embedllm.package.package import Package, open_package
from tests.support.tuned import SPINNING, remember, row

pytestmark = pytest.mark.usefixtures("records")


@pytest.fixture
def folder(tiny_package: Callable[..., Path]) -> Path:
    return tiny_package()


# --- what load() makes of it


def test_auto_takes_the_device_that_was_fastest(
    folder: Path, opened: list[OpenOptions], caplog: pytest.LogCaptureFixture
) -> None:
    found = remember(folder, "openvino", row("cpu"), row("openvino", RuntimeOptions(threads=1)))
    with caplog.at_level(logging.INFO, logger="embedllm"), embedllm.load(folder) as llm:
        assert f"'m' tuned: {llm.tuned}" in caplog.text
        assert llm.device.name == "openvino"
        assert found.date in ("2026-09-21", "2026-09-22")  # by where the machine is
        assert llm.tuned == f"yes: 1 thread; measured on {found.date}: 1,000 tokens/s of a prompt, 50 of a reply"
    assert [choices.runtime for choices in opened] == [RuntimeOptions(threads=1)]
    with embedllm.load(folder, device=["no such", "auto"]) as llm:
        assert llm.device.name == "openvino"


def test_a_device_that_is_asked_for_runs_as_it_was_fastest(folder: Path, opened: list[OpenOptions]) -> None:
    remember(folder, "openvino", row("cpu", is_chosen=False), SPINNING, row("openvino"))
    with embedllm.load(folder, device="cpu") as llm:
        assert llm.device.name == "cpu"
    with embedllm.load(folder, device="reference") as llm:
        assert llm.tuned == "no: reference was not measured"
    assert [choices.runtime for choices in opened] == [SPINNING.runtime]


def test_threads_that_are_given_go_before_the_record(folder: Path, opened: list[OpenOptions]) -> None:
    remember(folder, "cpu", SPINNING)
    with embedllm.load(folder, threads=2) as llm:
        assert llm.tuned == "no: threads were given"
    assert [choices.runtime for choices in opened] == [RuntimeOptions(threads=2)]


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
    options: dict[str, object], reason: str, folder: Path, opened: list[OpenOptions]
) -> None:
    remember(folder, "openvino", SPINNING, row("openvino", RuntimeOptions(threads=1)))
    with embedllm.load(folder, **options) as llm:  # type: ignore[arg-type]  # each is right
        assert llm.tuned == f"no: {reason}"
        assert llm.device.name == options.get("device", "cpu")
    assert [choices.runtime for choices in opened] == [DEFAULT]


def test_an_exact_load_uses_what_was_measured_exact(folder: Path, opened: list[OpenOptions]) -> None:
    remember(folder, "cpu", row("cpu", RuntimeOptions(floats=True)))
    remember(folder, "cpu", row("cpu", RuntimeOptions(threads=1)), exact=True)
    embedllm.load(folder, exact=True).close()
    assert [(choices.exact, choices.runtime) for choices in opened] == [(True, RuntimeOptions(threads=1))]


def test_the_environment_switches_it_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(folder, "openvino", SPINNING, row("openvino"))
    monkeypatch.setenv("EMBEDLLM_TUNED", "off")
    with embedllm.load(folder) as llm:
        assert (llm.device.name, llm.tuned) == ("cpu", "no: EMBEDLLM_TUNED=off")


def test_a_device_that_is_not_there_any_more_gives_way_to_the_others(
    folder: Path, opened: list[OpenOptions], caplog: pytest.LogCaptureFixture
) -> None:
    remember(folder, "cuda", SPINNING, row("cuda"))
    with caplog.at_level(logging.INFO, logger="embedllm"), embedllm.load(folder) as llm:
        assert llm.device.name == "cpu"
    assert [choices.runtime for choices in opened] == [SPINNING.runtime]
    assert caplog.text.count("not cuda: ") == 1  # it is not tried twice


def test_a_draft_model_runs_on_the_same_device(folder: Path, opened: list[OpenOptions]) -> None:
    remember(folder, "openvino", SPINNING, row("openvino"))
    embedllm.load(folder, draft=folder).close()
    assert [choices.device.name for choices in opened] == ["openvino", "openvino"]


def test_what_was_computed_with_other_roundings_is_told_apart(folder: Path) -> None:
    with embedllm.load(folder) as llm:
        untuned = llm.kind
    remember(folder, "cpu", row("cpu", RuntimeOptions(threads=1)))
    with embedllm.load(folder) as llm:
        assert llm.kind == untuned  # threads change no number that counts
    remember(folder, "cpu", row("cpu", RuntimeOptions(floats=True)))
    with embedllm.load(folder) as llm:
        assert llm.kind != untuned


def test_a_load_that_nothing_was_measured_for_writes_nothing(folder: Path, records: Path) -> None:
    with embedllm.load(folder) as llm:
        assert llm.tuned == "no: not measured"
    assert not records.exists()


# --- what is remembered


def recalled(folder: Path) -> tuning_record.Recalled:
    return tuning_record.recall(open_package(folder))


def test_a_record_comes_back_as_it_was_and_goes_when_it_is_forgotten(folder: Path, records: Path) -> None:
    tuning = remember(folder, "cpu", SPINNING)
    remember(folder, "cpu", SPINNING, exact=True)
    assert recalled(folder).tuning == tuning
    assert embedllm.forget_tuning(folder) == 2
    assert list(records.iterdir()) == []
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
    monkeypatch.setattr("embedllm.backends.system.cpu_threads.compute_threads", lambda: 97)


def _runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedllm.backends.system.ort_builds.versions_of", lambda names: {"openvino": "1.2"})


def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedllm.files.version.__version__", "99.0")


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
        (("tuning", "at"), 1e300),
        (("tuning", "at"), float("nan")),
        (("tuning", "measured"), {}),
        (("tuning", "left_out"), 3),
        (FIRST, "cpu"),
        ((*FIRST, "runtime"), {"threads": 5000}),
        ((*FIRST, "runtime"), {"kv": "int4"}),
        ((*FIRST, "runtime", "floats"), 1),
        ((*FIRST, "decode_tokens_s"), 0),
        ((*FIRST, "unknown"), 0),
        ((*FIRST, "is_chosen"), "yes"),
    ],
)
def test_a_record_that_makes_no_sense_is_not_used_and_said(
    path: Sequence[str | int], value: object, folder: Path, records: Path
) -> None:
    remember(folder, "cpu", SPINNING)
    (file,) = records.iterdir()
    file.write_text(_changed(json.loads(file.read_text()), path, value))
    with embedllm.load(folder) as llm:
        assert llm.device.name == "cpu"
        assert llm.tuned.startswith("no: ")
        assert llm.tuned.endswith(f"measure again with: embedllm tune {folder}")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_damaged_file_is_not_used_and_written_anew(content: bytes, folder: Path, records: Path) -> None:
    remember(folder, "cpu", SPINNING)
    (file,) = records.iterdir()
    file.write_bytes(content)
    assert recalled(folder).tuning is None
    assert "cannot be read" in recalled(folder).reason
    tuning = remember(folder, "cpu", SPINNING)
    assert recalled(folder).tuning == tuning


def test_where_nothing_can_be_written_the_measurement_is_told_all_the_same(folder: Path, records: Path) -> None:
    records.parent.parent.mkdir(exist_ok=True)
    records.parent.write_text("a file where the folder should be")  # root may write into any folder
    tuning = embedllm.tune(folder, devices=["cpu"], seconds=1)
    assert tuning.measured
    assert "cannot be written" in tuning.unkept
    with embedllm.load(folder) as llm:
        assert llm.tuned.startswith("no: ")


def test_writers_at_once_leave_one_whole_record(folder: Path, records: Path) -> None:
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
    assert len(list(records.iterdir())) == 1
