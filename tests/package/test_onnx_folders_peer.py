"""Folders that other exporters wrote themselves: the tokens of transformers, of the same checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import embedllm
from embedllm.package.package import open_package
from tests.support.tiny import tiny_checkpoint

pytestmark = pytest.mark.peer
pytest.importorskip("onnxruntime_genai")
transformers = pytest.importorskip("transformers")
PROMPT = [5, 9, 40, 41, 42, 77]


def of_transformers(checkpoint: Path, count: int) -> list[int]:
    import torch

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokens = torch.tensor([PROMPT])
    made = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, min_new_tokens=count,
                          max_new_tokens=count, pad_token_id=0)  # fmt: skip
    return made[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize(
    ("family", "precision", "options"),
    [
        ("llama", "fp32", ()),
        ("qwen3", "fp32", ()),
        ("mistral", "int4", ("int4_accuracy_level=1", "int4_block_size=32")),
    ],
)
def test_a_folder_of_the_builder_gives_the_tokens_of_transformers(
    tmp_path: Path, family: str, precision: str, options: tuple[str, ...]
) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", family, architectures=[f"{family.capitalize()}ForCausalLM"])
    folder = tmp_path / "model"
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", folder,
               "-p", precision, "-e", "cpu", "-c", tmp_path / "cache"]  # fmt: skip
    extra = ["--extra_options", *options] if options else []
    subprocess.run(
        [*map(str, command), *extra], check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    package = open_package(folder)
    assert package.external is not None
    assert package.external.maker == "onnxruntime-genai"
    assert package.external.names.appends
    with embedllm.load(folder) as model:
        got = list(model.generate(PROMPT, embedllm.Sampling(temperature=0), max_tokens=20, stop_tokens=()).tokens)
    if precision == "fp32":
        assert got == of_transformers(checkpoint, 20)
    else:  # rounded weights: the builder's own engine
        from tests.backends.genai.test_peer import genai_tokens

        assert got == genai_tokens(folder, PROMPT, 20)
