"""Multi-token prediction heads (MTP, nextn) of GGUF files: the checkpoint's, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import embedllm
from embedllm import Sampling
from embedllm.cli.main import cli
from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.eagle import add_eagle
from embedllm.export.mtp import add_mtp
from embedllm.package.package import WEIGHTS, open_package
from tests.support.draft_heads import make_drafts_free
from tests.support.gguf_files import Tensors, write_gguf
from tests.support.mtp_heads import CHECKPOINTS, as_deepseeks
from tests.support.tiny_nextn import LAYERS, tiny_glm4_moe

WHOLE = Recipe(bits=32)
BLOCK = f"blk.{LAYERS}."


def gguf_of(checkpoint: Path, **options: object) -> Path:
    """The checkpoint as a GGUF file, with all that its family's configuration takes for granted."""
    import transformers

    folder = as_deepseeks(checkpoint, checkpoint.parent / "renamed")
    config = transformers.AutoConfig.from_pretrained(folder).to_dict()
    (folder / "config.json").write_text(json.dumps(config))
    return write_gguf(checkpoint.parent / "model.gguf", folder, **options)  # type: ignore[arg-type]  # its options


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: values for key, values in tensors.items() if name not in key}


@pytest.mark.peer
@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3", "qwen3_5"])
def test_a_head_is_the_checkpoints_bit_for_bit(family: str, tmp_path: Path) -> None:
    checkpoint = CHECKPOINTS[family](tmp_path / "checkpoint")
    file = gguf_of(checkpoint)
    heads = [add_mtp(convert(source, tmp_path / name, WHOLE), source, bits=32)
             for name, source in (("hf", checkpoint), ("gguf", file))]  # fmt: skip
    assert open_package(tmp_path / "gguf").manifest["mtp_layers"] == 1
    first, second = ((head / WEIGHTS).read_bytes() for head in heads)
    assert first == second


@pytest.mark.peer
def test_the_file_of_a_package_drafts_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_drafts_free(monkeypatch)
    file, folder = gguf_of(tiny_glm4_moe(tmp_path / "checkpoint"), kind="Q8_0"), tmp_path / "package"
    done = CliRunner().invoke(cli, ["export", str(file), str(folder)])
    assert f"Add it: embedllm mtp {folder} {file}" in done.stderr
    done = CliRunner().invoke(cli, ["mtp", str(folder), str(file)])
    assert done.exit_code == 0, done.stderr
    stored = (folder / "mtp" / WEIGHTS).read_bytes()
    assert b"mtp.fc" in stored
    assert b"mtp.embedding.w" not in stored  # copies of the model's
    assert b"mtp.head" not in stored
    with embedllm.load(folder, device="cpu", draft=folder / "mtp") as model:
        plain = model.generate([5, 6, 7], Sampling(temperature=0), max_tokens=12, speculate="off")
        drafted = model.generate([5, 6, 7], Sampling(temperature=0), max_tokens=12, speculate="draft")
    assert drafted.statistics.drafted_tokens
    assert drafted.tokens == plain.tokens


@pytest.mark.peer
def test_a_head_without_a_norm_has_the_models(tmp_path: Path) -> None:
    """As llama.cpp has it."""

    def equal(tensors: Tensors) -> Tensors:
        return {**tensors, f"{BLOCK}nextn.shared_head_norm.weight": tensors["output_norm.weight"]}

    checkpoint = tiny_glm4_moe(tmp_path / "checkpoint")
    other = tiny_glm4_moe(tmp_path / "other" / "checkpoint")
    files = gguf_of(checkpoint, change=without("shared_head_norm")), gguf_of(other, change=equal)
    folder = convert(files[0], tmp_path / "package", WHOLE)
    first, second = ((add_mtp(folder, file, replace=True) / WEIGHTS).read_bytes() for file in files)
    assert first == second


@pytest.mark.peer
def test_a_head_in_a_file_of_its_own_is_refused(tmp_path: Path) -> None:
    """As convert_hf_to_gguf.py --mtp of llama.cpp writes it."""
    trunk = tuple(f"blk.{number}." for number in range(LAYERS))

    def alone(tensors: Tensors) -> Tensors:
        return {name: values for name, values in tensors.items() if not name.startswith(trunk)}

    with pytest.raises(ExportError, match=r"holds a multi-token prediction head .* without its model"):
        convert(gguf_of(tiny_glm4_moe(tmp_path / "checkpoint"), change=alone), tmp_path / "package")


@pytest.mark.peer
def test_a_file_without_a_head_and_one_of_several_layers_are_refused(tmp_path: Path) -> None:
    file = gguf_of(tiny_glm4_moe(tmp_path / "checkpoint"), change=without(BLOCK))
    folder = convert(file, tmp_path / "package", WHOLE)
    assert "mtp_layers" not in open_package(folder).manifest
    with pytest.raises(ExportError, match=r"'model.gguf' has no multi-token prediction head .* 'blk.2.nextn.hnorm"):
        add_mtp(folder, file)
    with pytest.raises(ExportError, match="GGUF file, of which no EAGLE-3 head is read"):
        add_eagle(folder, file)

    def twice(tensors: Tensors) -> Tensors:
        more = {name.replace(BLOCK, f"blk.{LAYERS + 1}."): np.copy(values) for name, values in tensors.items()
                if name.startswith(BLOCK)}  # fmt: skip
        return {**tensors, **more}

    said = {"glm4moe.block_count": LAYERS + 2, "glm4moe.nextn_predict_layers": 2}
    other = gguf_of(tiny_glm4_moe(tmp_path / "other" / "checkpoint"), change=twice, more=said)
    with pytest.raises(ExportError, match=r"heads \(MTP\) of 2 layers"):
        add_mtp(folder, other)
