"""What GGUF files of some architectures have besides: experts and small vectors in blocks, layers that are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedllm.backends.ort import engine as ort
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.gguf.source import GgufSource, unfused
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.package import open_package
from tests.export.gguf.test_source import CASES, source_of, without_names
from tests.support.families import FAMILIES, YARN, make_checkpoint
from tests.support.gguf_files import Change, Tensors, write_file, write_gguf

pytestmark = pytest.mark.peer
WHOLE = Recipe(bits=32, head_bits=32, embedding_bits=32)
SIZES = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 32}  # of whole blocks


def checkpoint(folder: Path, name: str, **values: object) -> Path:
    pytest.importorskip("transformers")
    case = FAMILIES[name]
    folder.mkdir(exist_ok=True)
    make_checkpoint(folder, dataclasses.replace(case, values={**case.values, **CASES.get(name, {}), **values}))
    return folder


def described(file: Path) -> tuple[object, GgufSource]:
    source = GgufSource(file)
    return without_names(source.tensors(describe(Config(source.config)))[0]), source


def check_same(file: Path, folder: Path) -> None:
    """Of a file and the checkpoint that it was made from."""
    found, source = described(file)
    source.close()
    theirs = source_of(folder)
    assert found == without_names(unfused(describe(Config(theirs.config))))
    theirs.close()


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v2", "internlm2", "granitemoeshared"])
def test_an_export_is_that_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf", name)
    ours = convert(write_gguf(tmp_path / "m.gguf", folder), tmp_path / "ours", WHOLE)
    theirs = convert(folder, tmp_path / "theirs", WHOLE)
    assert (ours / "weights.safetensors").read_bytes() == (theirs / "weights.safetensors").read_bytes()
    for graph in theirs.glob("*.onnx"):
        assert (ours / graph.name).read_bytes() == graph.read_bytes()


@pytest.mark.parametrize(("name", "kind", "values"), [
    ("gpt_oss", "MXFP4", {}), ("deepseek_v2", "Q8_0", SIZES), ("granitemoeshared", "Q4_0", {}),
    ("qwen3_5_text", "Q4_1", {"linear_value_head_dim": 32}), ("qwen3_5_text", "Q8_0", {}), ("lfm2", "Q8_0", {}),
    ("granitemoehybrid", "Q8_0", {}), ("nemotron_h experts", "Q8_0", {}), ("falcon_h1", "Q8_0", {}),
    ("gemma4_text", "Q8_0", {"hidden_size_per_layer_input": 32}), ("gemma3n_text", "Q8_0", {"laurel_rank": 32}),
])  # fmt: skip
def test_blocks_are_carried_over(name: str, kind: str, values: Mapping[str, object], tmp_path: Path) -> None:
    """Of DeepSeek's keys, whose blocks lie across the rows, the floats that they stand for.

    Of Qwen 3.5's value heads, whose columns are in another order, the blocks where each is of one head.
    """
    file = write_gguf(tmp_path / "m.gguf", checkpoint(tmp_path / "hf", name, **values), kind=kind)
    carried = open_package(convert(file, tmp_path / "carried", Recipe(exact=True)))
    floats = open_package(convert(file, tmp_path / "floats", WHOLE))
    tokens = list(range(20, 40))
    expected = ReferenceEngine(floats).open().feed_all(tokens)
    np.testing.assert_array_equal(ReferenceEngine(carried).open().feed_all(tokens), expected)
    graph = carried.graph("generic-float32")
    assert graph is not None
    found = OrtEngine(carried, graph, ort.devices()[0]).open().feed_all(tokens)
    # float32 summed in the processor's order, which states of the delta rule add up: 1.1e-4 with AVX2
    np.testing.assert_allclose(found, expected, atol=5e-4, rtol=0)


def fused(tensors: Tensors) -> Tensors:
    """Keys and values of small vectors in one matrix, as in DeepSeek's first files."""
    found = dict(tensors)
    for name in tensors:
        if name.endswith("attn_k_b.weight"):
            parts = (found.pop(name).swapaxes(1, 2), found.pop(name.replace("k_b", "v_b")))
            joined = np.concatenate(parts, axis=1)
            found[name.replace("k_b", "kv_b")] = joined.reshape(-1, joined.shape[-1])
    return found


def test_deepseeks_first_files_are_read(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "deepseek_v2 lite")
    sizes = {"key_length": 32, "value_length": 24, "key_length_mla": None, "value_length_mla": None, "head_count_kv": 4}
    more = {f"deepseek2.attention.{key}": value for key, value in sizes.items()}
    more |= {"deepseek2.expert_group_count": None, "deepseek2.expert_group_used_count": None}
    first = write_gguf(tmp_path / "first.gguf", folder, more=more, change=fused)
    newer = write_gguf(tmp_path / "newer.gguf", folder)
    check_same(first, folder)
    packages = [convert(file, tmp_path / file.stem, WHOLE) for file in (first, newer)]
    weights = [(package / "weights.safetensors").read_bytes() for package in packages]
    assert weights[0] == weights[1]


def joined_experts(tensors: Tensors) -> Tensors:
    """Gates and ups of all experts in one tensor, as a converter may write them."""
    found = dict(tensors)
    for name in tensors:
        if name.endswith("ffn_gate_exps.weight"):
            parts = (found.pop(name), found.pop(name.replace("gate", "up")))
            found[name.replace("gate", "gate_up")] = np.concatenate(parts, axis=1)
    return found


def in_one(tensors: Tensors) -> Tensors:
    """All that a delta rule reads in one matrix, head by head, as in Qwen3-Next's first files."""
    found = dict(tensors)
    for name in tensors:
        if name.endswith("attn_gate.weight"):
            z, qkv = found.pop(name), found.pop(name.replace("gate", "qkv"))
            q, k, v = np.split(qkv, [32, 64])  # of 2 key heads of 16
            parts = [part.reshape(2, -1, part.shape[-1]) for part in (q, k, v, z)]
            found[name.replace("attn_gate", "ssm_in")] = np.concatenate(parts, axis=1).reshape(-1, z.shape[-1])
    return found


def test_qwen3_nexts_first_files_are_read(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "qwen3_next")
    first = convert(write_gguf(tmp_path / "first.gguf", folder, change=in_one), tmp_path / "first", WHOLE)
    newer = convert(write_gguf(tmp_path / "newer.gguf", folder), tmp_path / "newer", WHOLE)
    assert (first / "weights.safetensors").read_bytes() == (newer / "weights.safetensors").read_bytes()


def guessing(tensors: Tensors) -> Tensors:
    return {**tensors, "blk.2.nextn.enorm.weight": np.ones(64, np.float32)}


@pytest.mark.parametrize(("more", "change"), [
    ({}, joined_experts),
    ({"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}, guessing),
])  # fmt: skip
def test_variants_of_files_are_read_alike(more: Mapping[str, Any], change: Change, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "glm4_moe")
    plain = convert(write_gguf(tmp_path / "plain.gguf", folder), tmp_path / "plain", WHOLE)
    other = convert(write_gguf(tmp_path / "other.gguf", folder, more=more, change=change), tmp_path / "other", WHOLE)
    assert (plain / "weights.safetensors").read_bytes() == (other / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(("family", "name", "more"), [
    ("qwen2", "qwen2vl", {"rope.dimension_sections": [2, 3, 3, 0]}),
    ("qwen3", "qwen3vl", {"rope.dimension_sections": [2, 3, 3, 0], "n_deepstack_layers": 3}),
    ("qwen3_moe", "qwen3vlmoe", {"rope.dimension_sections": [2, 3, 3, 0], "n_deepstack_layers": 3}),
    ("mistral", "mistral3", {}),
    ("granite", "granite", {"expert_shared_feed_forward_length": 96, "ssm.conv_kernel": 4}),
    ("gpt_oss", "gpt-oss", {"attention.sliding_window_pattern": 2}),
    ("gemma3_text", "gemma3", {"attention.sliding_window_pattern": 2}),
    ("qwen3_5_text", "qwen35", {"attention.recurrent_layers": None}),
    ("olmo3", "olmo2", {"rope.freq_base_swa": 1e4}),
])  # fmt: skip
def test_what_files_say_in_other_words_is_that_family(
    family: str, name: str, more: Mapping[str, Any], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, family, **({"sliding_window": None} if name == "mistral3" else {}))
    said = {f"{name}.{key}": value for key, value in more.items()}
    check_same(write_gguf(tmp_path / "m.gguf", folder, architecture=name, more=said), folder)


@pytest.mark.parametrize(("name", "more", "error", "message"), [
    ("glm4_moe", {"glm4moe.expert_gating_func": 1}, UnsupportedModel, "chooses experts by 'expert_gating_func' 1"),
    ("glm4_moe", {"glm4moe.nextn_predict_layers": 2}, ExportError, "has 2 layers, of which 2 are multi-token"),
    ("deepseek_v2 lite", {"deepseek2.attention.value_length_mla": 99}, UnsupportedModel, "v_head_dim is 99"),
    ("qwen3_5_text", {"qwen35.ssm.time_step_rank": 1 << 30}, ExportError, "'ssm.time_step_rank' is .*ssm_a' have 4"),
    ("qwen3_5_text", {"qwen35.ssm.group_count": 3}, UnsupportedModel, "4 value heads are no multiple of 3 key"),
    ("lfm2", {"lfm2.shortconv.l_cache": 5}, ExportError, "'shortconv.l_cache' is 5; .* have 3"),
    ("qwen3_5_text", {"qwen35.ssm.inner_size": 1 << 28}, ExportError, "attn_qkv.weight' is"),
    ("qwen3_5_text", {"qwen35.attention.head_count": 1 << 31}, ExportError, "a whole number up to 2147483647"),
    ("deepseek_v2 lite", {"deepseek2.expert_gating_func": 2}, UnsupportedModel, "by 'expert_gating_func' 2; known"),
    ("mistral", {"llama.attention.sliding_window_pattern": 2}, UnsupportedModel, "window_pattern', which is not"),
    ("granite", {"granite.rope.scaling.finetuned": False}, UnsupportedModel, "Granite of NoPE layers only"),
    ("minimax_m2", {"minimax-m2.expert_gating_func": 1}, UnsupportedModel, "known for such models is 2"),
    ("minimax_m2", {"minimax-m2.expert_weights_scale": 2.0}, UnsupportedModel, "scaled otherwise than by their sum"),
    ("gemma4_text", {"gemma4.expert_count": 8}, ExportError, "expert_used_count"),
    ("gemma4_text", {"gemma4.attention.value_length_swa": 8}, UnsupportedModel, "of different sizes"),
    ("gemma4_text", {"gemma4.feed_forward_length": [96, 96, 96, 96, 96, 192]}, UnsupportedModel, "its double in the"),
    ("gemma4_text", {"gemma4.attention.sliding_window_pattern": True}, UnsupportedModel, "the last is false"),
    ("gemma3n_text", {"gemma3n.activation_sparsity_scale": [1.0, 2.0]}, ExportError, "expected 4 numbers, one a layer"),
    ("gemma3n_text", {"gemma3n.altup.active_idx": 1}, UnsupportedModel, "altup_active_idx is not 0"),
    ("nemotron_h experts", {"nemotron_h_moe.expert_group_count": 2}, UnsupportedModel, "how many of them take part"),
    ("nemotron_h", {"nemotron_h.ssm.time_step_rank": 5}, ExportError, "'ssm.time_step_rank' is 5; .* have 4"),
    ("falcon_h1 norm", {"falcon-h1.ssm.group_count": 1}, ExportError, "ssm_conv1d.weight' is"),
    ("deepseek_v2 lite", {"deepseek2.attention.kv_lora_rank": None}, ExportError, "has no 'attention.kv_lora_rank'"),
    ("olmo3", {"olmo2.rope.freq_base_swa": 2e4}, UnsupportedModel, "base_swa' is 20000 and 'rope.freq_base' 10000"),
    ("phi3", {"phi3.rope.scaling.type": "longrope", "phi3.rope.scaling.factor": 4.0}, UnsupportedModel,
     "by 'longrope' with factor 4"),
    ("llama", {"llama.rope.scaling.attn_factor": 1.3}, UnsupportedModel, "by 'none' .*attention factor 1.3"),
    ("llama", {"llama.rope.scaling.factor": 2.0, "llama.rope.scaling.attn_factor": 1.3}, UnsupportedModel,
     "by 'linear' with factor 2 and attention factor 1.3"),
])  # fmt: skip
def test_what_files_do_not_say_is_not_guessed(
    name: str, more: Mapping[str, Any], error: type[ExportError], message: str, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "m.gguf", checkpoint(tmp_path, name), more=more)
    with pytest.raises(error, match=message):
        convert(file, tmp_path / "out")


@pytest.mark.parametrize("value", [None, 0.0])
@pytest.mark.parametrize(("name", "architecture", "keys", "multipliers"), [
    ("deepseek_v3", "deepseek2", ["expert_weights_scale"], ["routed_scaling_factor"]),
    ("granite", "granite", ["residual_scale", "embedding_scale"], ["residual_multiplier", "embedding_multiplier"]),
])  # fmt: skip
def test_a_scale_of_zero_is_none_as_in_llama_cpp(
    name: str, architecture: str, keys: list[str], multipliers: list[str], value: float | None, tmp_path: Path
) -> None:
    """And so is one that the file leaves out, whatever a config.json without it means."""
    folder = checkpoint(tmp_path / "hf", name, **dict.fromkeys(multipliers, 1.0))
    said = {f"{architecture}.{key}": value for key in keys}
    check_same(write_gguf(tmp_path / "m.gguf", folder, more=said), folder)


def test_the_attention_factor_of_yarn_is_that_of_the_file(tmp_path: Path) -> None:
    """The converter of llama.cpp writes it for any model whose config.json has it."""
    folder = checkpoint(tmp_path / "hf", "qwen3", rope_parameters={**YARN, "attention_factor": 1.5})
    more = {"qwen3.rope.scaling.yarn_attn_factor": 1.5}
    check_same(write_gguf(tmp_path / "m.gguf", folder, more=more), folder)


def test_a_gemma_without_windows_turns_all_layers_alike(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf", "gemma3_text", layer_types=["full_attention"] * 2)
    for value in (None, 0):
        more = {"gemma3.attention.sliding_window": value, "gemma3.attention.sliding_window_pattern": None}
        found, source = described(write_gguf(tmp_path / "m.gguf", folder, more=more))
        source.close()
        assert isinstance(found, Decoder)
        assert {layer.attention.window for layer in found.layers if isinstance(layer.attention, Attention)} == {None}
        assert len({layer.attention.rope for layer in found.layers if isinstance(layer.attention, Attention)}) == 1


def test_a_falcon_h1_whose_head_is_its_embedding_is_refused(tmp_path: Path) -> None:
    """The head of such a file is multiplied by what the embedding is."""
    file = write_gguf(tmp_path / "m.gguf", checkpoint(tmp_path, "falcon_h1", tie_word_embeddings=True))
    with pytest.raises(UnsupportedModel, match="whose head is its embedding"):
        GgufSource(file)


def test_half_of_the_factors_of_a_rotation_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf", "phi3 longrope")

    def without(tensors: Tensors) -> Tensors:
        return {name: values for name, values in tensors.items() if name != "rope_factors_short.weight"}

    with pytest.raises(ExportError, match="has one of the tensors 'rope_factors_long"):
        GgufSource(write_gguf(tmp_path / "m.gguf", folder, change=without))


def test_groups_of_experts_that_a_file_does_not_say_are_not_guessed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "deepseek_v2 lite", n_routed_experts=160, moe_intermediate_size=16)
    with pytest.raises(UnsupportedModel, match="of 160 experts whose file does not say in how many groups"):
        convert(write_gguf(tmp_path / "m.gguf", folder, more={"deepseek2.expert_group_count": None}), tmp_path / "out")


@pytest.mark.parametrize(("name", "message"), [
    ("mamba2", "'mamba2', which is not read: it has layers of a state space model"),
    ("qwen4", "'qwen4', which is not read from GGUF. Known: llama.* The nearest is"),
])  # fmt: skip
def test_an_architecture_that_is_not_read_is_named(name: str, message: str, tmp_path: Path) -> None:
    file = write_file(tmp_path / "m.gguf", name, {}, {"token_embd.weight": np.ones((2, 32), np.float32)}, kind="F32")
    with pytest.raises(UnsupportedModel, match=message):
        GgufSource(file)
