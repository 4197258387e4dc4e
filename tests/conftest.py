"""What every test may use: telemetry off, tiny packages made once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ.pop("EMBEDLLM_DEVICE", None)  # the machine's choice is not the tests'
os.environ["EMBEDLLM_TUNED"] = "off"  # nor is what was measured on it

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1 ...: of pytest -n
if WORKER and hasattr(os, "sched_setaffinity"):
    # cores of its own: threads of a runtime spin while they wait for one another, which takes a hundred times as long
    # when those of two processes share the cores
    CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, CORES[int(WORKER[2:]) % len(CORES) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])])

settings.register_profile("embedllm", deadline=None)  # machines are shared: a slow example is no failure
settings.load_profile("embedllm")


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that exports a tiny random model, once for equal arguments.

    tiny_package(family, recipe, **config): see tests/support/tiny.py.
    """
    from embedllm.export import Recipe, convert
    from tests.support.tiny import tiny_checkpoint

    made: dict[str, Path] = {}

    def make(family: str = "qwen3", recipe: Recipe | None = None, **config: object) -> Path:
        key = f"{family} {recipe} {sorted(config.items())}"
        if key not in made:
            folder = tmp_path_factory.mktemp("tiny")
            checkpoint = tiny_checkpoint(folder / "checkpoint", family, **config)  # type: ignore[arg-type]
            made[key] = convert(checkpoint, folder / "package", recipe)
        return made[key]

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
