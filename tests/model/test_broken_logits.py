"""Packages whose graph gives logits that say nothing: an error by the device's name, not token 0 for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm import Sampling, load
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from tests.support.tiny import tiny_checkpoint

Tensors = Mapping[str, np.ndarray]


def without_head(tensors: Tensors) -> dict[str, np.ndarray]:
    return {**tensors, "lm_head.weight": np.zeros_like(tensors["lm_head.weight"])}


def overflowing(tensors: Tensors) -> dict[str, np.ndarray]:
    """Products that are +inf and -inf, whose sum is no number."""
    return {name: each * np.float32(1e30) if "mlp" in name else each for name, each in tensors.items()}


BROKEN: dict[str, tuple[Callable[[Tensors], dict[str, np.ndarray]], str]] = {
    "zeros": (without_head, "all 307 logits of the model are 0; expected different ones. Its weights are damaged"),
    "NaN": (overflowing, "logits of the model are not finite numbers: token 0 has nan"),
}


@pytest.fixture(scope="module", params=BROKEN)
def broken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    change, says = BROKEN[request.param]
    folder = tmp_path_factory.mktemp("broken")
    path = tiny_checkpoint(folder / "checkpoint", "llama") / "model.safetensors"
    save_file(change(load_file(path)), path)
    return convert(path.parent, folder / "package", Recipe(bits=32)), says


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")  # NumPy's, of the reference
@pytest.mark.parametrize("device", ["cpu", "openvino", "reference"])
def test_logits_that_say_nothing_are_an_error(broken: tuple[Path, str], device: str) -> None:
    package, says = broken
    with load(package, device=device) as llm:
        for sampling in (Sampling(temperature=0), Sampling(temperature=0.8, top_p=0.9, seed=1)):
            with pytest.raises(DeviceError) as caught:
                llm.generate([5, 6, 7], sampling, max_tokens=3)
            assert f"on '{device}', {says}" in str(caught.value)
        with pytest.raises(DeviceError, match=f"on '{device}', "):
            llm.beam_search([5, 6, 7], beams=2, max_tokens=3)
