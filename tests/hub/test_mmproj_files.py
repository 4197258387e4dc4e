"""embedllm.hub.mmproj_files: which of several vision encoders is taken."""

from __future__ import annotations

import pytest

from embedllm.hub.mmproj_files import is_mmproj, preferred


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("mmproj.gguf", True), ("a/b/model.MMPROJ-f16.GGUF", True), ("mmproj/m.gguf", False), ("mmproj.bin", False)],
)
def test_a_file_is_known_by_its_name(name: str, is_one: bool) -> None:
    assert is_mmproj(name) is is_one


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("m-Q4_K_M.gguf", ["mmproj-F16.gguf", "mmproj-BF16.gguf", "mmproj-Q8_0.gguf", "mmproj-F32.gguf",
                           "mmproj-Q4_K_M.gguf"]),
        ("m-Q8_0.gguf", ["a/mmproj-model-f16.gguf", "a/mmproj-model-bf16.gguf", "a/mmproj-model.gguf"]),
        ("gemma-4b-it-F32.gguf", ["mmproj-gemma-4b-it-f32.gguf", "mmproj-gemma-12b-it-f16.gguf", "mmproj-f16.gguf"]),
        ("m.gguf", ["mmproj-fp16.gguf", "mmproj-xf16.gguf"]),
    ],
)  # fmt: skip
def test_the_models_words_go_before_the_type(model: str, names: list[str]) -> None:
    assert preferred(reversed(names), model) == names
