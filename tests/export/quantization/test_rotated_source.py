"""Turned values: the same model as floats, on every device and with what is added to it, and stored otherwise."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import embedllm
from embedllm.backends.base import FeedsAll
from embedllm.backends.devices.registry import devices, open_engine
from embedllm.cli.main import cli
from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.quantization.rotated_source import RotatedSource
from embedllm.export.verify import compare
from embedllm.hub.location import locate
from embedllm.package.hadamard import block_of, rotate
from embedllm.package.package import MANIFEST, Package, open_package
from tests.support.peft_folders import write_adapter
from tests.support.tiny import tiny_checkpoint

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.types import F32

TOKENS = np.random.default_rng(3).integers(0, 307, 60).tolist()
GREEDY = embedllm.Sampling(temperature=0)
EXACT = 1e-4  # of the largest logit; 1e-6 measured
MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "tied, q and k norms": ("qwen3", {}),
    "biases of q, k and v": ("qwen2", {}),
    "biases of o too, a head of its own": ("llama", {"attention_bias": True, "num_key_value_heads": 1}),
    "a window": ("mistral", {"sliding_window": 8, "num_key_value_heads": 4}),
    "blocks in a head": ("qwen2", {"head_dim": 48}),
}


@pytest.fixture(params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, config = MODELS[request.param]
    return tiny_checkpoint(tmp_path / "checkpoint", family, **dict[str, Any](config))


def logits(package: Path, device: str, *, exact: bool = True) -> F32:
    found = next(one for one in devices() if one.name == device)
    session = open_engine(open_package(package), found, exact=exact and device != "reference").open()
    assert isinstance(session, FeedsAll)
    return session.feed_all(TOKENS)


def stored(package: Path, name: str) -> np.ndarray:
    return load_file(package / "weights.safetensors")[name]


def far(one: F32, other: F32) -> float:
    """The largest difference, of the largest logit."""
    return float(np.abs(one - other).max() / np.abs(one).max())


@pytest.mark.slow
@pytest.mark.parametrize("device", ["reference", "cpu", "openvino"])
def test_as_floats_a_rotated_model_is_the_same(checkpoint: Path, tmp_path: Path, device: str) -> None:
    plain = convert(checkpoint, tmp_path / "plain", Recipe(bits=32))
    rotated = convert(checkpoint, tmp_path / "rotated", Recipe(bits=32, rotate=True))
    assert far(logits(plain, device), logits(rotated, device)) < EXACT
    for name in ("v", "o"):
        one, other = (stored(folder, f"layers.1.attention.{name}.weight") for folder in (plain, rotated))
        assert np.abs(one - other).max() > 0.1  # but it is stored otherwise
    one, other = (stored(folder, "layers.1.attention.q.weight") for folder in (plain, rotated))
    np.testing.assert_array_equal(one, other)


def test_what_one_channel_has_is_spread_over_its_head(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    tensors = load_file(checkpoint / "model.safetensors")
    name = "model.layers.0.self_attn.v_proj.weight"
    tensors[name][:] = 0
    tensors[name][16 + 5] = 4  # channel 5 of the second head
    save_file(tensors, checkpoint / "model.safetensors")
    found = stored(convert(checkpoint, tmp_path / "p", Recipe(bits=32, rotate=True)), "layers.0.attention.v.weight")
    np.testing.assert_array_equal(np.abs(found[:16]), 0)
    np.testing.assert_array_equal(np.abs(found[16:]), 1)  # 4 / sqrt(16)


def test_rounded_activations_lose_less_where_one_channel_of_a_head_is_large(tmp_path: Path) -> None:
    """By a bias of v that o's takes away again: only the steps that o's inputs are rounded to are others."""
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama", attention_bias=True)
    tensors = load_file(checkpoint / "model.safetensors")
    for at in (f"model.layers.{index}.self_attn" for index in (0, 1)):
        tensors[f"{at}.v_proj.bias"][3::16] += 30
        tensors[f"{at}.o_proj.bias"] -= 30 * tensors[f"{at}.o_proj.weight"][:, 3::16].sum(axis=1)
    save_file(tensors, checkpoint / "model.safetensors")
    lost: list[float] = []
    for is_rotated in (False, True):
        folder = convert(checkpoint, tmp_path / f"{is_rotated}", Recipe(rotate=is_rotated))
        lost.append(compare(logits(folder, "cpu"), logits(folder, "cpu", exact=False)).kl_mean)
    assert lost[1] < 0.5 * lost[0]


@given(heads=st.integers(1, 4), head_dim=st.sampled_from([2, 16, 48, 64, 80, 96, 128]), seed=st.integers(0, 99))
def test_a_second_turn_undoes_the_first_and_lengths_stay(heads: int, head_dim: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((3, heads * head_dim)).astype(np.float32)
    once = rotate(values, block_of(head_dim))
    np.testing.assert_allclose(rotate(once, block_of(head_dim)), values, atol=1e-5)
    np.testing.assert_allclose(*((one.reshape(3, heads, -1) ** 2).sum(-1) for one in (once, values)), rtol=1e-4)


@given(start=st.integers(0, 95), length=st.integers(1, 96))
def test_any_rows_are_those_of_the_whole(rotated: RotatedSource, start: int, length: int) -> None:
    for kind in ("weight", "bias"):
        name = f"model.layers.0.self_attn.v_proj.{kind}"
        stop = min(96, start + length)
        np.testing.assert_allclose(rotated.rows(name, start, stop), rotated.rows(name, 0, 96)[start:stop], atol=1e-6)


@pytest.fixture(scope="module")
def decoder(tiny_package: Callable[..., Path]) -> Decoder:
    return open_package(tiny_package("qwen2", head_dim=48)).decoder


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory, decoder: Decoder) -> Iterator[RotatedSource]:
    checkpoint = tiny_checkpoint(tmp_path_factory.mktemp("rotated") / "checkpoint", "qwen2", head_dim=48)
    source = HuggingFaceSource(locate(checkpoint, None))
    yield RotatedSource(source, decoder)
    source.close()


@pytest.mark.parametrize("device", ["reference", "cpu", "openvino"])
def test_an_adapter_adds_to_a_rotated_model_what_it_adds_to_a_plain_one(device: str, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    adapter = write_adapter(tmp_path / "adapter", checkpoint)
    packages = [convert(checkpoint, tmp_path / f"{on}", Recipe(bits=32, rotate=on)) for on in (False, True)]
    given = {"device": device, "exact": device != "reference"}
    for late in (False, True):  # added to a model that is loaded
        found: list[tuple[float, ...]] = []
        for package in packages:
            with embedllm.load(package, adapters={} if late else {"it": adapter}, **given) as model:  # type: ignore[arg-type]
                if late:
                    model.add_adapter("it", adapter)
                told, bare = (
                    model.generate(TOKENS, GREEDY, max_tokens=4, stop_tokens=(), adapter=name) for name in ("it", None)
                )
            found.append(told.logprobs)
            assert told.tokens != bare.tokens  # the adapter does something
        assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_an_adapter_is_merged_before_values_are_turned(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    adapter = write_adapter(tmp_path / "adapter", checkpoint)
    plain, rotated = (
        convert(checkpoint, tmp_path / f"{on}", Recipe(bits=32, rotate=on), lora=adapter) for on in (False, True)
    )
    assert far(logits(plain, "reference"), logits(rotated, "reference")) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [
    Recipe(rotate=True, method="gptq", group_size=16),
    Recipe(rotate=True, mean_bits=7.5),
    Recipe(rotate=True, symmetric=False, head_bits=8),
], ids=["gptq", "mixed bits", "zero points"])  # fmt: skip
def test_any_recipe_goes_with_it(recipe: Recipe, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", max_position_embeddings=24)
    package = convert(checkpoint, tmp_path / "p", recipe, verify=True)
    with embedllm.load(package) as model:
        assert len(model.generate([5, 6, 7], max_tokens=4, stop_tokens=()).tokens) == 4


def test_the_manifest_says_whether_it_is_rotated(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    for name, options in (("plain", []), ("rotated", ["--rotate"])):
        done = CliRunner().invoke(cli, ["export", str(checkpoint), str(tmp_path / name), "--quiet", *options])
        assert done.exit_code == 0, done.output
        manifest = json.loads((tmp_path / name / MANIFEST).read_text(encoding="utf-8"))
        assert manifest["recipe"]["rotate"] is (name == "rotated")
        assert open_package(tmp_path / name).is_rotated is (name == "rotated")
        del manifest["recipe"]["rotate"]  # of a version that knew of none
        assert not Package(tmp_path / name, manifest).is_rotated


def test_heads_of_an_odd_size_are_refused(rotated: RotatedSource, decoder: Decoder) -> None:
    layer = decoder.layers[0]
    odd = dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, head_dim=15))
    with pytest.raises(ExportError, match="heads have 15 values; a rotation turns an even number"):
        RotatedSource(rotated, dataclasses.replace(decoder, layers=(odd,)))
