"""What every test may use: telemetry off, one thread a worker, tiny packages made once a run."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from tests.support.selection import leave_out

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ.pop("EMBEDLLM_DEVICE", None)  # the machine's choice is not the tests'
os.environ["EMBEDLLM_TUNED"] = "off"  # nor is what was measured on it

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1 ...: of pytest -n
if WORKER and hasattr(os, "sched_setaffinity"):
    # Cores of its own for a worker and the processes that it starts: threads of a runtime spin while they wait for one
    # another, which takes ten to a hundred times as long when those of two processes share the cores
    CORES = sorted(os.sched_getaffinity(0))
    os.environ["EMBEDLLM_TEST_CORES"] = ",".join(map(str, CORES))  # for what may not have one alone
    os.sched_setaffinity(0, CORES[int(WORKER[2:]) % len(CORES) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])])

# machines are shared: a slow example is no failure
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# --- .ci/run: what one environment ran, another does not run again


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("embedllm")
    group.addoption("--passed-to", type=Path, metavar="FILE", help="add the ids of tests that passed to this file")
    group.addoption("--but-passed", type=Path, metavar="FILE", help="leave out the tests whose ids are in this file")
    group.addoption("--until", type=Path, metavar="FILE", help="run no more tests as soon as this file exists")


class _PassedLog:
    """Adds the ids of tests that passed (or failed as expected) to a file, one a line, as JSON."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(report.nodeid) + "\n")


class _Until:
    """Passes over the tests that are left once a file exists: they are neither run nor reported."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        return self.file.exists() or None


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--passed-to")
    if file and not WORKER:  # reports of all workers come to the process that started them
        config.pluginmanager.register(_PassedLog(file.absolute()))
    if file := config.getoption("--until"):
        config.pluginmanager.register(_Until(file.absolute()))


# marker: packages of which one has to be there, or its tests are not run
NEEDS = {
    "peer": ("torch", "transformers", "onnxruntime_genai", "openvino_genai", "sentencepiece", "llama_cpp", "peft"),
    "webgpu": ("onnxruntime_ep_webgpu",),
    "optimum": ("optimum",),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = [marker for marker, packages in NEEDS.items() if not any(map(find_spec, packages))]
    leave_out(config, items, lambda item: any(item.get_closest_marker(marker) for marker in lacking))
    file = config.getoption("--but-passed")
    if file and file.is_file():
        passed = {json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()}
        leave_out(config, items, lambda item: item.nodeid in passed)
    # the longest: begun last, one would keep a worker busy when the others are done
    items.sort(key=lambda item: item.get_closest_marker("real") is None)


def pytest_collection_finish() -> None:
    """Leaves what is there out of later collections: with torch and all tests loaded, one takes half a second."""
    gc.collect()
    gc.freeze()


# --- fixtures


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the run, the same in all workers: lock what is made there once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if WORKER else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def tiny_package(shared_folder: Path) -> Callable[..., Path]:
    """A function that exports a tiny random model, once a run for equal arguments: by one worker, for all of them.

    tiny_package(family, recipe, **config): see tests/support/tiny.py. The folder is shared: copy it to change it.
    A recipe that names no method gets "nearest", of a third of the time: the default is tested in tests/export.
    """
    from embedllm.export import Recipe, convert
    from tests.support.tiny import tiny_checkpoint

    def make(family: str = "qwen3", recipe: Recipe | None = None, **config: object) -> Path:
        recipe = (recipe or Recipe()).of_floats
        recipe = replace(recipe, method=recipe.method or "nearest")
        key = hashlib.sha256(f"{family} {recipe} {sorted(config.items())}".encode()).hexdigest()[:16]
        folder = shared_folder / key / "package"
        with FileLock(shared_folder / f"{key}.lock"):
            if not folder.exists():  # it appears whole
                place = shared_folder / key / "checkpoint"
                convert(tiny_checkpoint(place, family, **config), folder, recipe)  # type: ignore[arg-type]
        return folder

    return make


@pytest.fixture
def ctrl_c_works() -> Iterator[None]:
    """Also where the tests were started with SIGINT ignored, as in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of several tokens cost what a step of one does, so that much is proposed, whatever the clock says."""
    from embedllm.generation.speculation.cost_model import StepCosts

    monkeypatch.setattr(StepCosts, "is_known", True)
    monkeypatch.setattr(StepCosts, "is_draft_known", True)
    monkeypatch.setattr(StepCosts, "of", lambda self, fed: 1.0)
    monkeypatch.setattr(StepCosts, "clipped", lambda self, seconds, expected: 0.0)
    monkeypatch.setattr(StepCosts, "note", lambda self, fed, seconds, is_rewound: None)
    monkeypatch.setattr(StepCosts, "note_draft", lambda self, seconds: None)
