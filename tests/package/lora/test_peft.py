"""What is read of an adapter of PEFT, and what is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from embedllm.errors import PackageError
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.lora.adapter import Adapter
from embedllm.package.lora.peft import check_adaptable, read_adapter, read_adapters
from embedllm.package.lora.peft_config import read_config
from embedllm.package.package import open_package
from embedllm.package.tensors import linears
from tests.support.decoder_cases import mixtures, plain
from tests.support.described import described_package
from tests.support.peft_folders import ALL, config_of, write_adapter, write_factors
from tests.support.tiny import tiny_checkpoint, tiny_config, write_bf16

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("peft") / "checkpoint", "llama")


@pytest.fixture(scope="module")
def decoder(checkpoint: Path) -> Decoder:
    return describe(Config(json.loads((checkpoint / "config.json").read_text())))


@pytest.fixture
def folder(tmp_path: Path, checkpoint: Path) -> Path:
    return write_adapter(tmp_path / "adapter", checkpoint)


def change_config(folder: Path, **values: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def products(adapter: Adapter) -> dict[str, np.ndarray]:
    """[rows, columns] of each matrix: what is added to its weight."""
    return {name: (a @ b).T for name, (a, b) in adapter.factors.items()}


def refused(folder: Path, decoder: Decoder) -> str:
    with pytest.raises(PackageError) as caught:
        read_adapter("it", folder, decoder)
    return str(caught.value)


def test_factors_are_those_of_the_file_with_the_scale_in_the_second(folder: Path, decoder: Decoder) -> None:
    change_config(folder, lora_alpha=8)
    found = read_adapter("it", folder, decoder)
    stored = load_file(folder / "adapter_model.safetensors")
    a, b = found.factors["layers.0.attention.q"]
    np.testing.assert_array_equal(a, stored[f"{Q0}.lora_A.weight"].T)
    np.testing.assert_array_equal(b, 2 * stored[f"{Q0}.lora_B.weight"].T)
    assert set(found.factors) == {linear.name for layer in decoder.layers for linear in linears(layer)}
    assert found.bytes == 4 * sum(value.size for value in stored.values())
    assert all(array.flags.c_contiguous for pair in found.factors.values() for array in pair)


@given(
    targets=st.lists(st.sampled_from(ALL), min_size=1, unique=True),
    rank=st.integers(1, 70),
    alpha=st.floats(-64, 64),
    roots=st.booleans(),
    other=st.none() | st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
def test_what_is_added_is_alpha_over_the_rank_times_both(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, decoder: Decoder, targets: list[str], rank: int,
    alpha: float, roots: bool, other: int | None, seed: int,
) -> None:  # fmt: skip
    ranks = {} if other is None else {targets[0]: other}
    folder = write_adapter(tmp_path_factory.mktemp("adapter"), checkpoint, targets=targets, rank=rank, ranks=ranks,
                           seed=seed, alpha=alpha, use_rslora=roots)  # fmt: skip
    found = products(read_adapter("it", folder, decoder))
    stored = load_file(folder / "adapter_model.safetensors")
    matrices = [linear for layer in decoder.layers for linear in linears(layer)]
    wanted = {linear.name: linear for linear in matrices if linear.source.rpartition(".")[2] in targets}
    assert found.keys() == wanted.keys()
    for name, linear in wanted.items():
        a, b = (stored[f"base_model.model.{linear.source}.lora_{part}.weight"] for part in "AB")
        own = ranks.get(linear.source.rpartition(".")[2], rank)
        scale = alpha / math.sqrt(own) if roots else alpha / own
        np.testing.assert_allclose(found[name], scale * (b @ a), rtol=1e-4, atol=1e-5)


def test_patterns_of_ranks_and_strengths_go_by_the_end_of_a_name_and_the_first_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    patterns = {"layers.1.self_attn.q_proj": 32, "q_proj": 16, r"layers\.\d.mlp.up_proj": 2, "^model.norm": 9}
    path.write_text(json.dumps(config_of(ALL, 8, 4.0, rank_pattern=patterns, alpha_pattern={"q_proj": 64})))
    config = read_config(path)
    assert config.rank_of("model.layers.1.self_attn.q_proj") == 32
    assert config.rank_of("model.layers.11.self_attn.q_proj") == 16
    assert config.rank_of("model.layers.0.mlp.up_proj") == 2
    assert config.rank_of("model.layers.0.self_attn.not_q_proj") == 8
    assert config.scale_of("model.layers.1.self_attn.q_proj") == 2
    assert config.scale_of("model.layers.0.self_attn.k_proj") == 0.5


def test_the_multiplier_of_a_matrix_multiplies_its_factors(folder: Path, decoder: Decoder) -> None:
    first = decoder.layers[0]
    assert isinstance(first.attention, Attention)
    halved = replace(first.attention, q=replace(first.attention.q, weight_multiplier=0.5))
    multiplied = replace(decoder, layers=(replace(first, attention=halved), *decoder.layers[1:]))
    plain, found = (products(read_adapter("it", folder, each)) for each in (decoder, multiplied))
    for name, added in plain.items():
        np.testing.assert_array_equal(found[name], added * (0.5 if name == "layers.0.attention.q" else 1))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_half_precision_is_read_as_it_is(folder: Path, decoder: Decoder, kind: str) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = {name: np.round(value * 8) / 8 for name, value in load_file(path).items()}  # exact in both
    if kind == "F16":
        save_file({name: value.astype(np.float16) for name, value in tensors.items()}, path)
    else:
        write_bf16(path, tensors)
    a, _ = read_adapter("it", folder, decoder).factors["layers.0.attention.q"]
    np.testing.assert_array_equal(a, tensors[f"{Q0}.lora_A.weight"].T)


def test_a_file_is_taken_with_the_configuration_beside_it(folder: Path, decoder: Decoder) -> None:
    by_file = read_adapter("one", folder / "adapter_model.safetensors", decoder)
    assert by_file.sha256 == read_adapter("two", folder, decoder).sha256


def test_the_hash_tells_strengths_and_numbers_apart(folder: Path, checkpoint: Path, decoder: Decoder) -> None:
    before = read_adapter("it", folder, decoder).sha256
    change_config(folder, lora_alpha=5)
    stronger = read_adapter("it", folder, decoder).sha256
    write_adapter(folder, checkpoint, seed=1)
    assert len({before, stronger, read_adapter("it", folder, decoder).sha256}) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("fan_in_fan_out", True),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"),
        ("peft_type", "IA3"),
        ("layer_replication", [[0, 2], [1, 2]]),
        ("trainable_token_indices", {"embed_tokens": [1]}),
        ("alora_invocation_tokens", [5]),
        ("use_qalora", True),
        ("something_of_tomorrow", {"on": True}),
        ("use_rslora", "yes"),
    ],
)
def test_what_is_more_than_two_products_is_refused_by_its_name(
    folder: Path, decoder: Decoder, key: str, value: object
) -> None:
    change_config(folder, **{key: value})
    message = refused(folder, decoder)
    assert f"'{key}'" in message
    assert "merge_and_unload" in message


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"r": 0}, "rank 'r' as 0"),
        ({"r": "8"}, "rank 'r' as '8'"),
        ({"r": True}, "rank 'r' as True"),
        ({"lora_alpha": None}, "strength 'lora_alpha' as None"),
        ({"lora_alpha": float("nan")}, "strength 'lora_alpha' as nan"),
        ({"rank_pattern": {"q_proj": -1}}, "rank 'q_proj' as -1"),
        ({"rank_pattern": ["q_proj"]}, "expected an object"),
        ({"alpha_pattern": {"[": 1}}, "no pattern"),
        ({"rank_pattern": {"(a+)+b": 1}}, "without groups"),
        ({"rank_pattern": {".*" * 90 + "x": 1}}, "at most 3 repeats"),  # a search for it would not end
        ({"alpha_pattern": {"a?" * 40 + "x": 1}}, "at most 3 repeats"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    folder: Path, decoder: Decoder, values: dict[str, object], said: str
) -> None:
    change_config(folder, **values)
    assert said in refused(folder, decoder)


def test_another_rank_than_the_configured_one_is_refused_with_both(folder: Path, decoder: Decoder) -> None:
    change_config(folder, r=7)
    message = refused(folder, decoder)
    assert "is [4, 96]; expected [7, 96]" in message


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, decoder: Decoder) -> None:
    wider = tiny_checkpoint(tmp_path / "wider", "llama", hidden_size=80)
    message = refused(write_adapter(tmp_path / "adapter", wider), decoder)
    assert "Is it an adapter of this model?" in message
    deeper = tiny_checkpoint(tmp_path / "deeper", "llama", num_hidden_layers=3)
    assert "model.layers.2." in refused(write_adapter(tmp_path / "deep", deeper), decoder)


@pytest.mark.parametrize(
    ("family", "module"),
    [("phi3", "self_attn.qkv_proj"), ("phi3", "mlp.gate_up_proj"), ("cohere", "self_attn.q_proj")],
)
def test_an_adapter_of_a_matrix_that_lies_otherwise_says_what_helps(family: str, module: str, tmp_path: Path) -> None:
    """phi3 has q, k and v in one matrix, Command R the rows of q in another order; o is as it is in both."""
    sizes = tiny_config("llama")
    for name in ("head_dim", "hidden_act"):
        sizes.pop(name, None)
    decoder = describe(Config({**sizes, "model_type": family}))
    place = f"model.layers.0.{module}"
    for source, is_followed in ((place, False), ("model.layers.0.self_attn.o_proj", True)):
        shapes = {source: (64, 64)}
        folder = write_factors(tmp_path / source, shapes, config_of([source.rpartition(".")[2]], 4, 4.0))
        if is_followed:
            assert read_adapter("it", folder, decoder).factors
        else:
            message = refused(folder, decoder)
            assert f"'{place}'" in message
            assert "merge_and_unload" in message


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        f"{Q0}.lora_magnitude_vector",
        f"{Q0}.lora_B.bias",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.weight",
    ],
)
def test_a_tensor_that_is_not_followed_is_named(folder: Path, decoder: Decoder, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: np.zeros((4, 64), np.float32)}))
    assert f"'{name}', which is not followed" in refused(folder, decoder)


def test_half_a_pair_is_refused(folder: Path, decoder: Decoder) -> None:
    change_tensors(folder, lambda tensors: tensors.__delitem__(f"{Q0}.lora_B.weight"))
    assert f"no tensor '{Q0}.lora_B.weight'" in refused(folder, decoder)


def test_a_target_without_tensors_is_refused(tmp_path: Path, checkpoint: Path, decoder: Decoder) -> None:
    folder = write_adapter(tmp_path / "adapter", checkpoint, targets=["q_proj"])
    change_config(folder, target_modules=["q_proj", "up_proj"])
    assert "no tensors of 'up_proj'" in refused(folder, decoder)
    change_config(folder, target_modules=["q_proj", "c_attn"])  # the model has none of these: PEFT passes it over
    assert read_adapter("it", folder, decoder).factors
    change_config(folder, target_modules=r".*\.(q|k)_proj")
    assert read_adapter("it", folder, decoder).factors


def test_numbers_that_are_none_are_refused(folder: Path, decoder: Decoder) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{Q0}.lora_A.weight"][0, 0] = np.inf

    change_tensors(folder, spoil)
    assert "model.layers.0.self_attn.q_proj' are not all finite" in refused(folder, decoder)


def test_integers_are_refused(folder: Path, decoder: Decoder) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{Q0}.lora_A.weight"] = tensors[f"{Q0}.lora_A.weight"].astype(np.int8)

    change_tensors(folder, spoil)
    assert "is I8; expected F16, BF16, F32" in refused(folder, decoder)


def test_what_is_not_there_is_said(tmp_path: Path, folder: Path, decoder: Decoder) -> None:
    assert "there is no adapter" in refused(tmp_path / "nowhere", decoder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "there is adapter_config.json, adapter_model.bin" in refused(folder, decoder)
    (folder / "adapter_model.bin").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").unlink()
    assert "no 'adapter_config.json'" in refused(folder, decoder)
    (folder / "adapter_config.json").write_text("[1]")
    assert "holds a list" in refused(folder, decoder)
    (folder / "adapter_config.json").write_text("{")
    assert "cannot read" in refused(folder, decoder)


@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, decoder: Decoder, cut: float
) -> None:
    folder = write_adapter(tmp_path_factory.mktemp("cut"), checkpoint, targets=["q_proj"])
    path = folder / "adapter_model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    refused(folder, decoder)


def test_adapters_come_as_a_dict(decoder: Decoder, folder: Path) -> None:
    assert [adapter.name for adapter in read_adapters({"one": folder}, decoder)] == ["one"]
    for wrong in ([folder], {1: folder}, {"": folder}):
        with pytest.raises(ValueError, match="expected a dict"):
            read_adapters(wrong, decoder)  # type: ignore[arg-type]


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize(
    "config", [{}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 3}}]
)
def test_what_peft_writes_and_merges_is_what_is_added(
    tmp_path: Path, checkpoint: Path, decoder: Decoder, config: dict[str, object]
) -> None:
    peft, torch, transformers = (pytest.importorskip(name) for name in ("peft", "torch", "transformers"))
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    before = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    torch.manual_seed(0)
    wanted = peft.LoraConfig(r=5, lora_alpha=7, target_modules=list(ALL), init_lora_weights=False, **config)
    adapted = peft.get_peft_model(model, wanted)
    adapted.save_pretrained(tmp_path / "adapter")
    found = products(read_adapter("it", tmp_path / "adapter", decoder))
    merged = SimpleNamespace(**{"parameters": dict(adapted.merge_and_unload().named_parameters())})
    for layer in decoder.layers:
        for linear in linears(layer):
            name = f"{linear.source}.weight"
            change = merged.parameters[name].detach().numpy() - before[name]
            np.testing.assert_allclose(found[linear.name], change, atol=1e-6)


def test_a_mixture_takes_no_adapter_at_run_time_and_says_what_helps(tmp_path: Path) -> None:
    mixture = described_package(tmp_path / "mixture", mixtures()(plain()), Recipe(), variant="openvino")
    with pytest.raises(PackageError, match=r"'.*mixture' has a mixture of experts.*--lora"):
        check_adaptable(open_package(mixture))
    check_adaptable(open_package(described_package(tmp_path / "plain", plain(), Recipe(), variant="openvino")))
