"""Quantizing layer by layer on a text: against the model as it is, and the same folder as any other export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import embedllm
from embedllm.backends.ort.session import OrtSession
from embedllm.cli.main import cli
from embedllm.errors import DeviceError, ExportError
from embedllm.export import Progress, Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.quantization.calibration import calibrated
from embedllm.export.quantization.calibration_text import draw_text, read_text, sequences_for
from embedllm.export.writing.plan import plan
from embedllm.hub.location import locate
from embedllm.package.package import MANIFEST, open_package
from embedllm.package.packing import Packed
from embedllm.sampling.numpy_logits import NumpyLogits
from tests.support.calibration_texts import kl, logits, manifest, text
from tests.support.tiny import tiny_checkpoint

GPTQ = Recipe(method="gptq", group_size=16)
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "tied, q and k norms": ("qwen3", {}),
    "biases, a head of its own": ("qwen2", {}),
    "a window": ("mistral", {"sliding_window": 8}),
    "sizes that fill no group": ("llama", {"intermediate_size": 88}),
}


@pytest.fixture(params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, overrides = MODELS[request.param]
    return tiny_checkpoint(tmp_path / "checkpoint", family, **dict[str, Any](overrides))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint")


@pytest.mark.slow
def test_a_calibrated_model_stays_nearer_on_other_text_of_the_kind(checkpoint: Path, tmp_path: Path) -> None:
    decoder = describe(Config(HuggingFaceSource(locate(checkpoint, None)).config), None)
    other = read_text(text(tmp_path / "other.jsonl", seed=1), checkpoint, decoder).sequences[:6]
    base = logits(convert(checkpoint, tmp_path / "base", Recipe(bits=32)), other)
    searched = convert(checkpoint, tmp_path / "searched", Recipe(group_size=16))
    found = convert(checkpoint, tmp_path / "found", GPTQ, calibration=text(tmp_path / "text.jsonl"), verify=True)
    assert kl(base, logits(found, other)) < 0.8 * kl(base, logits(searched, other))
    assert (found / "weights.safetensors").stat().st_size == (searched / "weights.safetensors").stat().st_size


@pytest.mark.parametrize("recipe", [
    Recipe(method="gptq", head_bits=8, symmetric=False),
    Recipe(method="gptq", head_bits=16),
    Recipe(method="gptq", bits=8, group_size=64),
], ids=["8-bit head, zero points", "16-bit head", "8 bits, groups that no row fills"])  # fmt: skip
@pytest.mark.slow
def test_any_recipe_gives_a_folder_that_loads_and_computes_what_it_says(
    recipe: Recipe, checkpoint: Path, tmp_path: Path
) -> None:
    package = convert(checkpoint, tmp_path / "p", recipe, calibration=text(tmp_path / "text.jsonl"), verify=True)
    with embedllm.load(package) as model:
        assert len(model.generate([5, 6, 7], max_tokens=4, stop_tokens=()).tokens) == 4
    assert manifest(package)["recipe"]["method"] == "gptq"  # type: ignore[index]


def test_with_nothing_to_round_the_pieces_are_the_weights(checkpoint: Path, request: pytest.FixtureRequest) -> None:
    source = HuggingFaceSource(locate(checkpoint, None))
    request.addfinalizer(source.close)
    decoder = describe(Config(source.config), None)
    packing = plan(decoder, Recipe(bits=32)).packing
    sequences = np.random.default_rng(0).integers(0, decoder.vocabulary, (2, 20))
    seen: dict[str, list[np.ndarray]] = {}
    for linear, rows in calibrated(source, decoder, packing, sequences):
        assert not isinstance(rows, Packed)
        seen.setdefault(linear.source, []).append(rows)
    for name, rows in seen.items():
        found = np.concatenate(rows)
        assert np.array_equal(found, source.rows(f"{name}.weight", 0, len(found)))


def test_a_matrix_makes_up_for_what_the_layers_before_it_lost(tiny: Path, tmp_path: Path) -> None:
    """Without it, the same rounding leaves the model further off, on the calibration text itself."""
    from embedllm.export.quantization import calibration

    file = text(tmp_path / "text.jsonl")
    decoder = describe(Config(HuggingFaceSource(locate(tiny, None)).config), None)
    sequences = read_text(file, tiny, decoder).sequences
    base = logits(convert(tiny, tmp_path / "base", Recipe(bits=32)), sequences)
    found = kl(base, logits(convert(tiny, tmp_path / "found", GPTQ, calibration=file), sequences))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_PROPAGATED", np.float32(0))
        without = kl(base, logits(convert(tiny, tmp_path / "without", GPTQ, calibration=file), sequences))
    assert found < without


def test_the_same_text_gives_the_same_bytes_and_another_one_others(tiny: Path, tmp_path: Path) -> None:
    file, other = text(tmp_path / "text.jsonl"), text(tmp_path / "other.jsonl", seed=1)
    one, two, three = (
        (convert(tiny, tmp_path / name, GPTQ, calibration=path) / "weights.safetensors").read_bytes()
        for name, path in (("one", file), ("two", file), ("three", other))
    )
    assert one == two
    assert one != three


def test_the_manifest_says_what_was_read(tiny: Path, tmp_path: Path) -> None:
    from embedllm.package.package import sha256

    file = text(tmp_path / "text.jsonl")
    found = manifest(convert(tiny, tmp_path / "p", GPTQ, calibration=file))["calibration"]
    assert isinstance(found, dict)
    assert found["text"] == "text.jsonl"
    assert found["sha256"] == sha256(file)
    assert found["tokens"] == 128  # its whole context
    assert "calibration" not in manifest(convert(tiny, tmp_path / "q", Recipe(method="search")))


def test_without_a_text_the_model_draws_one(tmp_path: Path) -> None:
    stages: list[str] = []
    tiny = tiny_checkpoint(tmp_path / "checkpoint", max_position_embeddings=24)
    package = convert(tiny, tmp_path / "p", GPTQ, on_progress=lambda at: stages.append(at.stage))
    assert manifest(package)["calibration"] == {"text": None, "sequences": 128, "tokens": 24}
    assert list(dict.fromkeys(stages)) == ["draft-weights", "draft", "weights", "calibration", "graphs"]
    opened = open_package(package)
    opened.check()
    assert {path.name for path in package.iterdir()} == {MANIFEST, *opened.files}  # no draft is left


def test_what_a_model_draws_fills_its_context_from_another_token_on_each_time(
    tiny_package: Callable[..., Path],
) -> None:
    done: list[tuple[int, int]] = []
    sequences = draw_text(
        tiny_package("qwen3", max_position_embeddings=24), lambda *progress: done.append(progress)
    ).sequences
    assert sequences.shape == (128, 24)
    assert len(set(sequences[:, 0].tolist())) == len({tuple(row) for row in sequences[:, 1:].tolist()}) == 128
    assert (done[0], done[-1]) == ((0, 128 * 24), (128 * 24, 128 * 24))
    assert done == sorted(done)


def test_drawing_is_reported_before_a_sequence_is_whole(
    tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They all end together: the first sixteen of a model of 0.6B after a minute."""
    monkeypatch.setattr("embedllm.export.quantization.calibration_text._REPORT_S", 0.001)
    done: list[int] = []
    draw_text(tiny_package("qwen3"), lambda drawn, _: done.append(drawn), count=1)
    assert any(0 < drawn < 128 for drawn in done)


@pytest.mark.slow
def test_every_stage_is_reported_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    tiny = tiny_checkpoint(tmp_path / "checkpoint", max_position_embeddings=24)
    seen: list[Progress] = []
    convert(tiny, tmp_path / "p", GPTQ, verify=True, on_progress=seen.append)
    for stage in dict.fromkeys(at.stage for at in seen):
        own = [at for at in seen if at.stage == stage]
        least = 0 if stage not in ("weights", "draft-weights") else own[0].total // 2  # its first bytes come at once
        assert own[0].done <= least, stage
        assert own[-1].done == own[-1].total, stage


def test_drawing_ends_at_once_when_a_step_fails(
    tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    feed = OrtSession.feed

    def failing(self: OrtSession, tokens: Sequence[int]) -> NumpyLogits:
        fed.append(1)
        if len(fed) == 40:
            raise DeviceError("no memory for this step")
        return feed(self, tokens)

    monkeypatch.setattr(OrtSession, "feed", failing)
    with pytest.raises(ExportError, match="no memory for this step"):
        draw_text(tiny_package("qwen3"))
    assert len(fed) < 200  # of 128 sequences of 128 tokens


def test_progress_counts_passes_through_layers(checkpoint: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    convert(checkpoint, tmp_path / "p", GPTQ, calibration=text(tmp_path / "text.jsonl"), on_progress=seen.append)
    found = [(at.done, at.total) for at in seen if at.stage == "calibration"]
    assert found == [(index, found[-1][1]) for index in range(found[-1][1] + 1)]


def test_wide_models_read_fewer_sequences() -> None:
    def count(columns: int) -> int:
        config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": columns, "num_hidden_layers": 1,
                  "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 99,
                  "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e4}  # fmt: skip
        return sequences_for(describe(Config(config), None))

    assert (count(1536), count(8192), count(14336), count(1 << 20)) == (128, 32, 16, 16)


# What is refused


def test_a_text_that_is_too_short_is_refused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("the dog", encoding="utf-8")
    with pytest.raises(ExportError, match=r"short\.txt' is too short"):
        convert(tiny, tmp_path / "p", GPTQ, calibration=tmp_path / "short.txt")
    assert not (tmp_path / "p").exists()


def test_a_text_that_is_not_there_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot read '.*none\.txt'"):
        convert(tiny, tmp_path / "p", GPTQ, calibration=tmp_path / "none.txt")


def test_a_text_for_another_method_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="'gptq', 'awq\\+gptq', not for 'search' without a size"):
        convert(tiny, tmp_path / "p", Recipe(method="search"), calibration=text(tmp_path / "text.jsonl"))


def test_where_nothing_is_rounded_there_is_nothing_to_calibrate(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"at 16 bits there is no matrix of 4 or 8 bits.*Leave out the method"):
        convert(tiny, tmp_path / "p", Recipe(method="gptq", bits=16))
    assert not (tmp_path / "p").exists()


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "checkpoint")
    small = tiny_checkpoint(tmp_path / "small", vocab_size=100)
    (small / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ExportError, match="expected less than 100"):
        convert(small, tmp_path / "p", GPTQ, calibration=text(tmp_path / "text.jsonl"))


def test_a_text_that_makes_a_model_overflow_is_named(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "checkpoint", rms_norm_eps=1e-6)
    from tests.support.tiny import tiny_config, tiny_tensors, write_bf16

    tensors = tiny_tensors(tiny_config(), 0)
    tensors["model.layers.0.mlp.up_proj.weight"] *= np.float32(1e38)
    write_bf16(folder / "model.safetensors", tensors)
    with pytest.raises(ExportError, match=r"not finite|beyond float16"):
        convert(folder, tmp_path / "p", GPTQ, calibration=text(tmp_path / "text.jsonl"))


# The command


def test_the_command_calibrates(tiny: Path, tmp_path: Path) -> None:
    file = text(tmp_path / "text.jsonl")
    done = CliRunner().invoke(
        cli, ["export", str(tiny), str(tmp_path / "p"), "--calibrate", str(file), "--group", "16"]
    )
    assert done.exit_code == 0, done.output
    made = (tmp_path / "p" / "weights.safetensors").read_bytes()
    assert made == (convert(tiny, tmp_path / "q", GPTQ, calibration=file) / "weights.safetensors").read_bytes()


def test_the_command_refuses_a_text_for_another_method(tiny: Path, tmp_path: Path) -> None:
    file = text(tmp_path / "text.jsonl")
    call = ["export", str(tiny), str(tmp_path / "p"), "--calibrate", str(file), "--method", "search"]
    done = CliRunner().invoke(cli, call)
    assert done.exit_code == 2
    assert "not for 'search' without a size" in " ".join(done.output.replace("│", " ").split())
