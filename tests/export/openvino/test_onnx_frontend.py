"""model.onnx in OpenVINO's ONNX frontend: what it can read gives the reference's logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe
from embedllm.package.package import open_package

ov = pytest.importorskip("openvino")
ATOL = 2e-3
PROMPT = list(range(3, 27))  # longer than the window
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
RECIPES = {
    "int4": Recipe(),
    "asymmetric, odd groups": Recipe(symmetric=False),
    "int8 head": Recipe(head_bits=8),
    "float head": Recipe(head_bits=16),
}
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_and_a_step_give_the_references_logits(
    family: str, tied: bool, recipe: str, tiny_package: Callable[..., Path]
) -> None:
    window = {"sliding_window": 16} if family == "mistral" and tied else {}
    folder = tiny_package(family, RECIPES[recipe], tie_word_embeddings=tied, **window)
    reference = ReferenceEngine(open_package(folder)).open()
    model = OnnxModel(folder)
    for tokens in (PROMPT, [31], [32, 33, 34]):
        expected = reference.feed_all(tokens)[-1]
        np.testing.assert_allclose(model.feed(tokens), expected, atol=ATOL, rtol=0, err_msg=f"{len(tokens)} tokens")


def test_logits_from_is_no_input_there(tiny_package: Callable[..., Path]) -> None:
    """An input with a default becomes a constant: the logits are always those of the last position."""
    model = OnnxModel(tiny_package("llama"))
    assert {"input_ids", "attention_mask"} == {name for name in model.inputs if not name.startswith("past")}
    assert model.feed(PROMPT).shape == (307,)


@pytest.mark.xfail(strict=True, reason="2026.4 multiplies QuickGelu's float16 input by a float32 constant")
def test_the_float16_graph_can_be_read(tiny_package: Callable[..., Path]) -> None:
    ov.Core().read_model(tiny_package("llama") / "model.fp16.onnx")


class OnnxModel:
    """The float32 graph on the CPU; keys and values are its inputs and outputs."""

    def __init__(self, folder: Path) -> None:
        self.compiled = ov.Core().compile_model(folder / "model.onnx", "CPU", EXACT)
        self.inputs = {port.get_any_name(): port for port in self.compiled.inputs}
        self.past = {
            name: np.zeros([1, port.partial_shape[1].get_length(), 0, port.partial_shape[3].get_length()], np.float32)
            for name, port in self.inputs.items()
            if name.startswith("past")
        }
        self.held = 0

    def feed(self, tokens: Sequence[int]) -> np.ndarray:
        """The last token's logits."""
        self.held += len(tokens)
        mask = np.ones((1, self.held), np.int64)
        results = self.compiled({"input_ids": np.array([tokens]), "attention_mask": mask, **self.past})
        self.past = {name: results[name.replace("past_key_values", "present")].copy() for name in self.past}
        return results["logits"][0, -1]
