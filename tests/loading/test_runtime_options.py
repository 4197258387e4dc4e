"""What `embedllm tune` may choose, and that the engines do it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from embedllm.backends.devices.registry import open_engine
from embedllm.backends.openvino.paged_engine import PagedEngine
from embedllm.backends.options import DEFAULT, MOST_THREADS, RuntimeOptions
from embedllm.backends.ort import engine as ort
from embedllm.package.package import open_package
from tests.support.openings import device


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"threads": -1}, "threads is -1; expected 0"),
        ({"threads": MOST_THREADS + 1}, "threads is 1025; expected 0"),
        ({"threads": True}, "threads is True; expected 0"),
        ({"spinning": 1}, "spinning is 1; expected true or false"),
        ({"floats": "no"}, "floats is 'no'; expected true or false"),
    ],
)
def test_values_that_make_no_sense_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RuntimeOptions(**given)  # type: ignore[arg-type]  # wrong on purpose


def test_they_say_what_differs_from_the_default() -> None:
    assert str(DEFAULT) == "default"
    assert str(RuntimeOptions(threads=1)) == "1 thread"
    assert str(RuntimeOptions(threads=4, spinning=True, floats=True)) == "4 threads, spinning, float activations"


@pytest.mark.parametrize(
    ("runtime", "threads", "spin_us"),
    [(DEFAULT, 0, "20"), (RuntimeOptions(threads=3), 3, "20"), (RuntimeOptions(spinning=True), 0, None)],
)
def test_onnx_runtime_is_told(
    runtime: RuntimeOptions, threads: int, spin_us: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "compute_threads", lambda: 0)
    options = ort.session_options(runtime, exact=False)
    assert options.intra_op_num_threads == threads
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    duration = "session.intra_op.spin_duration_us"
    if spin_us is not None:
        assert options.get_session_config_entry(duration) == spin_us
    else:
        with pytest.raises(RuntimeError, match="does not have configuration"):
            options.get_session_config_entry(duration)


def test_an_onnx_runtime_without_short_spinning_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort.ort, "__version__", "1.24.4")
    for runtime, spins in ((DEFAULT, "0"), (RuntimeOptions(spinning=True), "1")):
        options = ort.session_options(runtime, exact=False)
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == spins


def test_openvino_is_told_the_threads(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package())
    engine = cast(PagedEngine, open_engine(package, device("openvino"), runtime=RuntimeOptions(threads=1)))
    assert engine.compiled.get_property("INFERENCE_NUM_THREADS") == 1
    engine.close()


def test_float_activations_are_nearer_to_the_reference_than_the_default(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package())
    prompt = [3, 100, 41, 7, 250]

    def logits(name: str, runtime: RuntimeOptions = DEFAULT, *, exact: bool = False) -> np.ndarray:
        engine = open_engine(package, device(name), runtime=runtime, exact=exact)
        row = engine.open().feed(prompt)
        values = np.array(row.values(range(row.size)))
        engine.close()
        return values

    right = logits("reference")
    floats, default = logits("cpu", RuntimeOptions(floats=True)), logits("cpu")
    assert np.array_equal(floats, logits("cpu", exact=True))
    assert np.abs(floats - right).max() < np.abs(default - right).max()
