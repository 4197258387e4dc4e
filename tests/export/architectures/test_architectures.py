"""A config.json becomes a decoder, or an error that names the key, the value and what was expected."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import architectures
from embedllm.export.architectures import describe, families
from embedllm.export.architectures._shared.unsupported import UNSUPPORTED
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)
from embedllm.package.rope import tables
from embedllm.package.tensors import kv_bytes, linears, norms, parameters
from tests.support.tiny import tiny_config, tiny_tensors

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


def described(family: str = "llama", /, **overrides: object) -> Decoder:
    """The decoder of a tiny config; a key whose override is Ellipsis is left out."""
    return describe(tiny(family, **overrides))


def tiny(family: str = "llama", /, **overrides: object) -> Config:
    config = tiny_config(family, **overrides)
    return Config({key: value for key, value in config.items() if value is not ...})


def rope_of(**overrides: object) -> Rope:
    return described(**overrides).rope


# What is described


def test_the_families_are_the_files() -> None:
    folder = Path(architectures.__file__).parent
    files = {path.stem for path in folder.glob("*.py")}
    assert set(families()) == {name for name in files if name not in ("config", "__init__")}
    assert set(FAMILIES) <= set(families())


def test_a_llama_by_hand() -> None:
    decoder = described("llama", num_key_value_heads=1)
    assert (decoder.model_type, decoder.vocabulary, decoder.hidden, decoder.context) == ("llama", 307, 64, 128)
    assert not decoder.tied
    assert decoder.rope == Rope(base=10_000, rotary_dim=16)
    assert len(decoder.layers) == 2
    layer = decoder.layers[1]
    shapes = {linear.source.removeprefix("model.layers.1."): (linear.rows, linear.columns) for linear in linears(layer)}
    assert shapes == {
        "self_attn.q_proj": (64, 64),
        "self_attn.k_proj": (16, 64),
        "self_attn.v_proj": (16, 64),
        "self_attn.o_proj": (64, 64),
        "mlp.gate_proj": (96, 64),
        "mlp.up_proj": (96, 64),
        "mlp.down_proj": (64, 96),
    }
    assert not any(linear.bias for linear in linears(layer))
    assert decoder.attentions[1].q_norm is None
    assert decoder.attentions[1].window is None
    assert layer.attention_norm is not None
    assert layer.mlp_norm is not None
    assert layer.attention_norm.source == "model.layers.1.input_layernorm.weight"
    assert layer.mlp_norm.source == "model.layers.1.post_attention_layernorm.weight"
    assert decoder.norm.epsilon == 1e-6


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("extra", [{}, {"attention_bias": True, "mlp_bias": True}], ids=["plain", "biases"])
def test_the_tensors_of_a_checkpoint_are_those_that_the_description_names(
    family: str, extra: dict[str, object]
) -> None:
    """transformers' names and shapes, as the tiny checkpoints have them."""
    if extra and family in ("mistral", "qwen2"):
        extra = {}  # these know no such keys
    if family == "qwen3":
        extra = {key: value for key, value in extra.items() if key != "mlp_bias"}
    config = tiny_config(family, **extra)
    decoder = describe(Config(config))
    matrices = [linear for layer in decoder.layers for linear in linears(layer)] + [decoder.embedding, decoder.head]
    named = {f"{linear.source}.weight": (linear.rows, linear.columns) for linear in matrices}
    named |= {f"{linear.source}.bias": (linear.rows,) for linear in matrices if linear.bias}
    named |= {norm.source: (norm.size,) for norm in norms(decoder)}
    tensors = tiny_tensors(config, seed=0)
    assert named == {name: value.shape for name, value in tensors.items()}
    assert parameters(decoder) == sum(value.size for value in tensors.values())


def test_the_memory_of_the_kv_cache_by_hand() -> None:
    """2 layers, key and value, 2 heads of 16 numbers, 4 bytes each: 512 bytes a token."""
    assert kv_bytes(described(), 100) == 51_200


@pytest.mark.parametrize("missing", [..., None])
def test_what_a_config_leaves_out_follows_from_the_rest(missing: object) -> None:
    decoder = described("llama", num_key_value_heads=missing, head_dim=missing, rope_theta=missing,
                        tie_word_embeddings=missing, hidden_act=missing, rms_norm_eps=missing)  # fmt: skip
    attention = decoder.attentions[0]
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (4, 4, 16)
    assert decoder.rope.base == 10_000
    assert decoder.norm.epsilon == 1e-6
    assert not decoder.tied


def test_a_head_may_be_wider_than_its_share_of_the_hidden_size() -> None:
    attention = described("qwen3", head_dim=32).attentions[0]
    assert (attention.q.rows, attention.k.rows, attention.o.columns, attention.o.rows) == (128, 64, 128, 64)
    assert attention.q_norm is not None
    assert attention.q_norm.size == 32


# Windows


@pytest.mark.parametrize(
    ("family", "overrides", "windows"),
    [
        ("mistral", {"sliding_window": None}, [None, None]),
        ("mistral", {"sliding_window": 8}, [8, 8]),
        ("mistral", {"sliding_window": ...}, [4096, 4096]),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 8}, [None, None]),
        ("qwen2", {"use_sliding_window": ..., "sliding_window": 8}, [None, None]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, [8, 8]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, [None, 8]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, [None, None]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8}, [None, None]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [None, None]),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 1}, [None, 4096]),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8,
                   "layer_types": ["sliding_attention", "full_attention"]}, [8, None]),
        ("llama", {"sliding_window": 8, "use_sliding_window": True}, [None, None]),
    ],
)  # fmt: skip
def test_windows_by_hand(family: str, overrides: dict[str, object], windows: list[int | None]) -> None:
    """What a config leaves out is what transformers takes: a window of 4096, on the layers from 28 on."""
    assert [attention.window for attention in described(family, **overrides).attentions] == windows


@pytest.mark.peer
@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("use", [..., False, True])
@pytest.mark.parametrize("window", [..., None, 8])
@pytest.mark.parametrize("first", [..., 0, 1, 2])
def test_windows_are_those_of_transformers(
    family: str, use: object, window: object, first: object, tmp_path: Path
) -> None:
    import json

    transformers = pytest.importorskip("transformers")
    config = tiny_config(family, use_sliding_window=use, sliding_window=window, max_window_layers=first)
    config = {key: value for key, value in config.items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 2
    expected = [theirs.sliding_window if kind == "sliding_attention" else None for kind in kinds]
    assert [attention.window for attention in describe(Config(config)).attentions] == expected


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (["full_attention"], "'layer_types' has 1 entries; expected 2, one a layer"),
        (["full_attention"] * 3, "'layer_types' has 3 entries; expected 2, one a layer"),
        (["full_attention", "chunked_attention"], "layer type 'chunked_attention' is not described"),
        (["full_attention", ""], "layer type '' is not described"),
        (["full_attention", 1], "'layer_types' is .* expected a list of strings"),
        ("full_attention", "'layer_types' is 'full_attention'; expected a list of strings"),
    ],
)
def test_layer_types_that_do_not_fit_are_named(types: object, says: str) -> None:
    with pytest.raises(ExportError, match=says):
        described("qwen3", use_sliding_window=True, sliding_window=8, layer_types=types)


# Rotary embeddings

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
ROPES: dict[str, tuple[dict[str, object], RopeScaling | None]] = {
    "none": ({}, None),
    "default": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 2}, LinearScaling(factor=2.0)),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, DynamicScaling(factor=2.0, original_context=128)),
    "llama3": (
        {"rope_type": "llama3", **LLAMA3},
        Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=32),
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        YarnScaling(factor=4.0, original_context=32, beta_fast=32.0, beta_slow=1.0,
                    attention_factor=0.1 * math.log(4) + 1, truncate=True),
    ),
    "yarn without its factor": (
        {"rope_type": "yarn", "original_max_position_embeddings": 64, "factor": None, "truncate": False},
        YarnScaling(factor=2.0, original_context=64, beta_fast=32.0, beta_slow=1.0,
                    attention_factor=0.1 * math.log(2) + 1, truncate=False),
    ),
    "yarn of the trained length": (
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2},
        YarnScaling(
            factor=4.0, original_context=128, beta_fast=16.0, beta_slow=2.0, attention_factor=1.5, truncate=True
        ),
    ),
    "yarn of DeepSeek": (
        {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 0.5},
        YarnScaling(factor=4.0, original_context=128, beta_fast=32.0, beta_slow=1.0, truncate=True,
                    attention_factor=(0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
    ),
}  # fmt: skip


LONGROPE = {"rope_type": "longrope", "short_factor": [1] * 8, "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 32}  # fmt: skip
ROPES["longrope"] = LONGROPE, LongRopeScaling(
    short=(1.0,) * 8, long=(2.0,) * 8, original_context=32, context=128,
    attention_factor=math.sqrt(1 + math.log(4) / math.log(32)),
)  # fmt: skip
for _name in ("su", "yarn"):  # of Phi-3's first configs
    ROPES[f"longrope as {_name}"] = {**LONGROPE, "rope_type": _name}, ROPES["longrope"][1]


@pytest.mark.parametrize(("keys", "scaling"), ROPES.values(), ids=ROPES)
def test_rope_scaling_in_its_old_and_new_place(keys: dict[str, object], scaling: RopeScaling | None) -> None:
    expected = Rope(base=500_000.0, rotary_dim=16, scaling=scaling)
    old = {"type" if key == "rope_type" else key: value for key, value in keys.items()}
    assert rope_of(rope_theta=500_000, rope_scaling=keys) == expected
    assert rope_of(rope_theta=500_000, rope_scaling=old) == expected
    assert rope_of(rope_theta=..., rope_parameters={"rope_theta": 5e5, **keys}) == expected
    assert rope_of(rope_theta=5e5, rope_parameters={**keys, "rope_theta": None}) == expected


@pytest.mark.parametrize(("context", "factor"), [(32, 1.25), (33, 1.5)])
def test_longrope_of_a_phi_moe_has_a_factor_of_cos_and_sin_for_each_set(context: int, factor: float) -> None:
    """As published: 'type', and the trained length under 'rope_scaling'."""
    scaling = {**LONGROPE, "type": "longrope", "short_mscale": 1.25, "long_mscale": 1.5}
    decoder = describe(tiny("llama", model_type="phimoe", rope_scaling=scaling, num_local_experts=2), context)
    cos, sin = tables(decoder.rope, 1)
    assert (cos.max(), sin.max()) == (factor, 0)


def test_the_trained_length_may_stand_outside_of_the_rope_parameters() -> None:
    rope = rope_of(original_max_position_embeddings=64, rope_scaling={"type": "yarn", "factor": 2.0})
    assert isinstance(rope.scaling, YarnScaling)
    assert rope.scaling.original_context == 64


def test_equal_rope_keys_in_both_places_are_one() -> None:
    keys = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    assert rope_of(rope_theta=..., rope_scaling=keys, rope_parameters=keys).scaling == LinearScaling(factor=2.0)
    assert rope_of(rope_scaling=None, rope_parameters=keys).base == 5e5
    assert rope_of(rope_scaling={}, rope_parameters=keys).base == 5e5


def test_rope_keys_that_contradict_each_other_are_refused() -> None:
    """As when somebody adds 'rope_scaling' for a longer context to a config that has 'rope_parameters' already."""
    with pytest.raises(ExportError, match=r"'rope_parameters' and 'rope_scaling' of config\.json differ; keep one"):
        rope_of(rope_parameters={"rope_theta": 1e6}, rope_scaling={"type": "yarn", "factor": 4.0})


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gemma2"])
@pytest.mark.parametrize("key", ["", "rope_scaling", "rope_parameters"])
def test_a_family_that_rotates_whole_heads_does_so_whatever_part_is_stated(family: str, key: str) -> None:
    """As transformers 5.23, of whose models few read it."""
    part: dict[str, object] = {"partial_rotary_factor": 0.5}
    assert describe(tiny(family, **({key: part} if key else part))).rope.rotary_dim == 16


def test_a_part_with_a_scaling_that_transformers_fails_on_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor is 0\.5; .* rotates whole heads.*'linear'"):
        rope_of(rope_scaling={"type": "linear", "factor": 2.0}, partial_rotary_factor=0.5)


def test_of_a_part_with_a_rope_type_that_is_not_described_the_type_is_named() -> None:
    """transformers rotates such heads: it does not fail."""
    with pytest.raises(UnsupportedModel, match=r"rope type 'proportional' is not described"):
        rope_of(rope_parameters={"rope_type": "proportional", "partial_rotary_factor": 0.5})


def test_a_gguf_file_says_itself_how_much_is_rotated() -> None:
    assert rope_of(partial_rotary_factor=0.5, rotates_parts=True).rotary_dim == 8


WRONG_ROPES: list[tuple[object, str]] = [
    ("yarn", "'rope_scaling' is 'yarn'; expected an object"),
    ([], r"'rope_scaling' is \[\]; expected an object"),
    ({"type": "ntk"}, "rope type 'ntk' is not described; known: default, linear, dynamic, llama3, yarn, longrope"),
    ({"type": "longrope"}, "rope_scaling has no 'short_factor'"),
    ({"type": "longrope", "short_factor": [1.0]}, r"'short_factor' is \[1.0\]; expected a list of 8 numbers"),
    ({"type": "longrope", "short_factor": [0] * 8}, "'short_factor' is 0; expected a number > 0"),
    ({"type": 3}, "'type' is 3; expected a string"),
    ({"type": "linear"}, "rope_scaling has no 'factor'"),
    ({"type": "linear", "factor": "2"}, "'factor' is '2'; expected a number"),
    ({"type": "linear", "factor": 0}, "'factor' is 0; expected a number > 0"),
    ({"type": "dynamic", "factor": -1.0}, "'factor' is -1.0; expected a number > 0"),
    ({"type": "llama3", **LLAMA3, "low_freq_factor": 5}, "'high_freq_factor' is 4.0; expected at least 'low_freq_fac"),
    ({"type": "llama3", **LLAMA3, "low_freq_factor": 0}, "'low_freq_factor' is 0; expected a number > 0"),
    ({"type": "llama3", **LLAMA3, "original_max_position_embeddings": 0}, "'original_max_position_embeddings' is 0"),
    ({"type": "yarn", "factor": 0.0}, "'factor' is 0.0; expected a number > 0"),
    ({"type": "yarn", "factor": 2, "beta_fast": 0}, "'beta_fast' is 0; expected a number > 0"),
    ({"type": "yarn", "factor": 2, "beta_slow": True}, "'beta_slow' is True; expected a number > 0"),
    ({"type": "yarn", "factor": 2, "attention_factor": 0}, "'attention_factor' is 0; expected a number > 0"),
    ({"type": "yarn", "factor": 2, "truncate": 1}, "'truncate' is 1; expected true or false"),
]


@pytest.mark.parametrize(("scaling", "says"), WRONG_ROPES)
def test_a_rope_that_is_not_understood_is_named(scaling: object, says: str) -> None:
    with pytest.raises(ExportError, match=says):
        rope_of(rope_scaling=scaling)


@pytest.mark.parametrize("part", [-0.5, 0.0, 0.07, 0.2, 1.5])
def test_a_part_that_no_head_has_is_refused(part: float) -> None:
    with pytest.raises(ExportError, match=f"partial_rotary_factor is {part}; expected a part"):
        rope_of(rope_scaling={"type": "default", "partial_rotary_factor": part}, rotates_parts=True)


# What is refused


@pytest.mark.parametrize(
    ("model_type", "hint"),
    [
        ("qwen2_5", "qwen3_5"),
        ("qwen3moe", "qwen3_moe"),
        ("llama5", "llama"),
        ("Llama", "llama"),
        ("mixstral", "mixtral"),
    ],
)
def test_an_unknown_model_type_names_the_nearest(model_type: str, hint: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        describe(Config({"model_type": model_type}))
    known = f"Known: {', '.join(families())}."
    assert str(caught.value) == f"model_type '{model_type}' is not described here. {known} The nearest is '{hint}'."
    assert caught.value.model_type == model_type


@pytest.mark.parametrize(
    ("model_type", "says"),
    [
        ("qwen4_exp", "embeddings of hashed n-grams"),
        ("hy_v4_vl", "hyper-connections"),
        ("inkling2_loop", "messages from one pass to the next"),
        ("dory", "residuals on the unit sphere"),
        ("glm_moe_dsa", "sparse attention to tokens that an indexer chooses"),
        ("falcon_mamba", "no layer with attention"),
    ],
)
def test_a_family_that_cannot_be_described_is_refused_with_what_it_has(model_type: str, says: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"model_type '{model_type}' is not described here: it has .*{says}"):
        describe(Config({"model_type": model_type}))


def test_no_family_is_described_and_refused() -> None:
    assert UNSUPPORTED.keys().isdisjoint(families())


def test_a_model_type_like_no_other_gets_no_hint() -> None:
    with pytest.raises(UnsupportedModel, match=r"'wav2vec' is not described here\. Known: [a-z0-9_, ]*\.$"):
        describe(Config({"model_type": "wav2vec"}))


@pytest.mark.parametrize("model_type", ["common", "__init__", "..llama", ""])
def test_a_model_type_that_is_a_file_name_but_no_family_is_refused(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match="is not described here"):
        describe(Config({"model_type": model_type}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantization", [{}, {"quant_method": "gptq", "bits": 4}])
def test_a_quantized_checkpoint_is_refused(family: str, quantization: dict[str, object]) -> None:
    with pytest.raises(UnsupportedModel, match=r"already quantized .* Export from the original checkpoint"):
        described(family, quantization_config=quantization)


@pytest.mark.parametrize("family", FAMILIES)
def test_another_activation_is_refused(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"hidden_act is 'quick_gelu'; the {family} description knows silu, "):
        described(family, hidden_act="quick_gelu")
    assert described(family, hidden_act="swish") == described(family)


REQUIRED = ["model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "vocab_size", "max_position_embeddings"]  # fmt: skip
COUNTS = [*REQUIRED[1:], "num_key_value_heads", "head_dim"]


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize(("family", "missing"), [("internlm2", ...), ("llama", None)])
def test_a_missing_key_is_named(family: str, key: str, missing: object) -> None:
    with pytest.raises(ExportError, match=rf"^config\.json has no '{key}'"):
        described(**{"model_type": family, key: missing})


def test_an_absent_size_is_that_of_the_configuration_class() -> None:
    """As in transformers; of InternLM 2, which is not there, none is known."""
    own = {"num_attention_heads": 32, "num_key_value_heads": ..., "hidden_size": ..., "head_dim": ...}
    attention = described("qwen3", **own).layers[0].attention
    assert isinstance(attention, Attention)
    assert (attention.q.columns, attention.head_dim, attention.kv_heads) == (4096, 128, 32)


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", ["64", 64.0, True, 0, -1, [64], {}])
def test_a_count_of_the_wrong_kind_is_named_with_its_value(key: str, value: object) -> None:
    with pytest.raises(ExportError) as caught:
        described(**{key: value})
    assert str(caught.value) == f"config.json: '{key}' is {value!r}; expected a whole number >= 1."


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *(("rope_theta", value, "a number > 1") for value in ("1e4", True, 1, 0.5, -1.0, math.nan, math.inf, [1])),
        *(("rms_norm_eps", value, "a number > 0") for value in ("x", False, 0.0, -1e-6, math.nan, math.inf)),
        ("rope_theta", 10**400, "a number > 1"),
        ("tie_word_embeddings", "true", "true or false"),
        ("tie_word_embeddings", 1, "true or false"),
        ("attention_bias", "no", "true or false"),
        ("mlp_bias", 0, "true or false"),
        ("hidden_act", 3, "a string"),
        ("model_type", 3, "a string"),
        ("model_type", ["llama"], "a string"),
    ],
)
def test_another_value_of_the_wrong_kind_is_named(key: str, value: object, expected: str) -> None:
    with pytest.raises(ExportError) as caught:
        described(**{key: value})
    assert str(caught.value).startswith(f"config.json: '{key}' is ")
    assert str(caught.value).endswith(f"; expected {expected}.")
    assert len(str(caught.value)) < 200


def test_heads_that_do_not_share_evenly_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="4 attention heads are no multiple of 3 key/value heads"):
        described(num_key_value_heads=3)


@pytest.mark.parametrize("head_dim", [1, 8, 17, 100])
def test_a_head_that_the_attention_operator_cannot_rotate_is_refused(head_dim: int) -> None:
    """Such a folder could be exported, but no runtime would run it."""
    with pytest.raises(UnsupportedModel, match=f"head_dim is {head_dim}; .* multiple of 16"):
        described(head_dim=head_dim)


JUNK = st.one_of(
    st.none(), st.booleans(), st.text(max_size=4), st.floats(1e-3, 1e6), st.lists(st.integers(), max_size=2),
    st.sampled_from((0, 1, 2, 3, 16, 32, 64, -1, 1.0, -2.5, 1e300, math.nan, math.inf)),
    st.sampled_from(("silu", "qwen2", "yarn", "dynamic", "linear")),
)  # fmt: skip
ROPE_KEYS = ["type", "rope_type", "factor", "rope_theta", "original_max_position_embeddings", "low_freq_factor",
             "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate",
             "partial_rotary_factor"]  # fmt: skip
KEYS = [*tiny_config(), "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "attention_bias",
        "mlp_bias", "rope_scaling", "rope_parameters", "partial_rotary_factor", "quantization_config"]  # fmt: skip
SECTIONS = st.dictionaries(st.sampled_from(ROPE_KEYS), JUNK, max_size=4)


@given(
    st.sampled_from(FAMILIES),
    st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=2),
    st.one_of(st.none(), st.tuples(st.sampled_from(list(ROPES.values())), SECTIONS)),
)
def test_any_config_is_described_and_its_tables_computed_or_it_is_refused(
    family: str, changes: dict[str, object], scaling: tuple[tuple[dict[str, object], object], dict[str, object]] | None
) -> None:
    """Whatever its values: an ExportError or a decoder, no other error and no warning."""
    if scaling is not None:
        changes = {"rope_scaling": {**scaling[0][0], **scaling[1]}, **changes}
    try:
        decoder = describe(Config({**tiny_config(family), **changes}))
    except ExportError:
        return
    assert [len(table) for table in tables(decoder.rope, 8)] == [8, 8]


# The context


@pytest.mark.parametrize("context", [1, 127, 128])
def test_a_shorter_context_is_taken(context: int) -> None:
    assert describe(tiny(), context).context == context


@pytest.mark.parametrize("context", [0, -1, 129])
def test_a_context_that_the_model_cannot_hold_is_refused_with_the_longest(context: int) -> None:
    with pytest.raises(ExportError, match=f"context is {context} tokens; expected 1 to 128"):
        describe(tiny(), context)


@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_rope_scaling_lengthens_the_longest_context(kind: str) -> None:
    config = tiny(rope_scaling={"type": kind, "factor": 4.0})
    assert describe(config).context == 128
    assert describe(config, 512).context == 512
    with pytest.raises(ExportError, match="expected 1 to 512"):
        describe(config, 513)


@pytest.mark.parametrize(("context", "divided"), [(32, 1), (33, 2), (None, 2)])
def test_the_context_of_an_export_chooses_the_factors_of_longrope(context: int | None, divided: int) -> None:
    rope = describe(tiny(rope_scaling=LONGROPE), context).rope
    assert isinstance(rope.scaling, LongRopeScaling)
    found = tables(rope, 3)[0] / np.float32(rope.scaling.attention_factor)
    plain = tables(Rope(base=rope.base * 1.0, rotary_dim=16), 3)
    expected = np.cos(np.arccos(plain[0]) / divided)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_linear_scaling_does_not_lengthen_it() -> None:
    """Its config says the scaled length already."""
    with pytest.raises(ExportError, match="expected 1 to 128"):
        describe(tiny(rope_scaling={"type": "linear", "factor": 4.0}), 129)
