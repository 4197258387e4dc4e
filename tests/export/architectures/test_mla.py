"""Multi-head latent attention (MLA): what methods that read a text make of them, what they cost, who refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedllm.errors import ExportError, PackageError
from embedllm.export import Recipe, convert
from embedllm.export.checkpoints.tensor_mapping import read_matrix
from embedllm.export.quantization.imatrix import read_importance
from embedllm.package.architecture.weights import Linear, Origin
from embedllm.package.graph_variants import DIRECTML
from embedllm.package.lora.peft import check_adaptable
from embedllm.package.package import open_package
from embedllm.package.tensors import kv_bytes
from tests.support.calibration_texts import kl, logits, text, with_outliers
from tests.support.decoder_cases import mla, plain
from tests.support.described import described_package
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.imatrix_files import imatrix

DECODER = mla(rope_dim=16, nope_dim=16, value=24)(plain())


@pytest.mark.peer
@pytest.mark.parametrize("method", ["weighted", "awq", "gptq", "awq+gptq"])
def test_methods_that_read_a_text_stay_nearer_than_rounding(method: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    make_checkpoint(tmp_path / "checkpoint", FAMILIES["minicpm3"])
    checkpoint = with_outliers(tmp_path / "checkpoint", 20)
    sample = text(tmp_path / "text.jsonl", words=500)
    sequences = np.random.default_rng(0).integers(0, 300, (4, 24))
    base = logits(convert(checkpoint, tmp_path / "base", Recipe(bits=32)), sequences)
    nearest = convert(checkpoint, tmp_path / "nearest", Recipe(method="nearest", group_size=16))
    found = convert(
        checkpoint, tmp_path / "found", Recipe(method=method, group_size=16), calibration=sample, verify=True
    )
    assert kl(base, logits(found, sequences)) < kl(base, logits(nearest, sequences))


def test_a_token_costs_whole_keys_and_values() -> None:
    assert kv_bytes(DECODER, 1) == 2 * (2 * 5 * 32) * 4  # layers, keys and values of five heads, float32


def test_rows_that_the_source_has_last_come_first() -> None:
    """Two heads of five rows; the last four turn by neighbouring pairs."""

    class Rows:
        def check(self, name: str, shape: tuple[int, ...]) -> None: ...

        def rows(self, name: str, start: int, stop: int) -> np.ndarray:
            return np.arange(start, stop, dtype=np.float32)[:, None]

    origin = Origin(rows=10, head_rows=5, interleaved=4, rope_last=4)
    found = read_matrix(Rows(), Linear(name="q", source="q", rows=10, columns=1, origin=origin), 0, 10)
    assert found[:, 0].tolist() == [1, 3, 2, 4, 0, 6, 8, 7, 9, 5]


def test_adapters_at_run_time_and_llama_cpps_importance_are_refused(tmp_path: Path) -> None:
    folder = described_package(tmp_path / "small", DECODER, Recipe(), variant="openvino")
    with pytest.raises(PackageError, match=r"'.*small' makes keys and values of small vectors.*--lora"):
        check_adaptable(open_package(folder))
    with pytest.raises(ExportError, match="cut in another way"):
        read_importance(imatrix(tmp_path / "a.gguf", {}), DECODER)
    assert "multi-head latent attention" in DIRECTML.unsupported(DECODER)
