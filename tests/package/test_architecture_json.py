"""A description survives its way through the manifest; anything else in its place is refused and named."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.errors import PackageError
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.rope import LinearScaling
from embedllm.package.architecture.weights import Norm
from embedllm.package.architecture_json import _read_value, from_json, to_json
from tests.support.tiny import tiny_config

SCALINGS: list[dict[str, object] | None] = [
    None,
    {"type": "linear", "factor": 2.0},
    {"type": "dynamic", "factor": 2.5},
    {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False},
]  # fmt: skip


@st.composite
def decoders(draw: st.DrawFn) -> Decoder:
    """Any small config of the families that read the same keys."""
    family = draw(st.sampled_from(("llama", "mistral", "qwen2", "qwen3")))
    kv_heads = draw(st.integers(1, 4))
    overrides: dict[str, object] = {
        "hidden_size": draw(st.integers(1, 300)),
        "intermediate_size": draw(st.integers(1, 300)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": kv_heads * draw(st.integers(1, 3)),
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from((16, 32, 128))),
        "vocab_size": draw(st.integers(1, 1000)),
        "max_position_embeddings": draw(st.integers(1, 10_000)),
        "rms_norm_eps": draw(st.floats(1e-12, 1e-2)),
        "rope_theta": draw(st.one_of(st.floats(2, 1e9), st.integers(2, 10**9))),
        "rope_scaling": draw(st.sampled_from(SCALINGS)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "use_sliding_window": draw(st.booleans()),
        "sliding_window": draw(st.one_of(st.none(), st.integers(1, 100))),
        "max_window_layers": draw(st.integers(0, 3)),
    }
    return describe(Config(tiny_config(family, **overrides)))


@given(decoders())
def test_a_description_comes_back_from_the_text_of_a_manifest(decoder: Decoder) -> None:
    back = from_json(json.loads(json.dumps(to_json(decoder), allow_nan=False)))
    assert back == decoder
    assert hash(back) == hash(decoder)


def test_what_has_its_default_is_left_out() -> None:
    data = to_json(describe(Config(tiny_config("llama"))))
    assert data["rope"] == {"base": 10_000.0, "rotary_dim": 16}
    assert data["embedding"] == {"name": "embedding", "source": "model.embed_tokens", "rows": 307, "columns": 64}
    assert "window" not in data["layers"][0]["attention"]  # type: ignore[index]


def test_a_scaling_says_which_it_is() -> None:
    rope = to_json(describe(Config(tiny_config("llama", rope_scaling=SCALINGS[1]))))["rope"]
    assert rope == {"base": 10_000.0, "rotary_dim": 16, "scaling": {"kind": "LinearScaling", "factor": 2.0}}


def test_a_whole_number_is_taken_for_a_fraction() -> None:
    """JSON written by others may say 10000 for 10000.0."""
    data = whole()
    data["rope"] = {"base": 10_000, "rotary_dim": 16, "scaling": {"kind": "LinearScaling", "factor": 2}}
    decoder = from_json(data)
    assert isinstance(decoder, Decoder)
    rope = decoder.rope
    assert (type(rope.base), rope.scaling) == (float, LinearScaling(factor=2.0))


# What is refused


EVERYTHING: dict[str, object] = {
    "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "attention_bias": True,
    "rope_scaling": SCALINGS[4], "num_hidden_layers": 2, "tie_word_embeddings": False,
}  # fmt: skip
TEXT = json.dumps(to_json(describe(Config(tiny_config("qwen3", **EVERYTHING)))))


def whole() -> dict[str, object]:
    """A description with every optional field in use."""
    return json.loads(TEXT)


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every object, list and leaf."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def named(path: tuple[str | int, ...]) -> str:
    return "architecture" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)


def exchanged(path: tuple[str | int, ...], value: object) -> object:
    """The description with what lies at a path exchanged; Ellipsis removes it."""
    data: object = whole()
    if not path:
        return value
    place = data
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    if value is ...:
        del place[path[-1]]  # type: ignore[attr-defined]
    else:
        place[path[-1]] = value  # type: ignore[index]
    return data


def at(path: tuple[str | int, ...]) -> object:
    value: object = whole()
    for key in path:
        value = value[key]  # type: ignore[index]
    return value


PATHS = [path for path in places(whole()) if path[-1:] != ("kind",)]
JUNK: list[object] = [None, True, -1.5, math.inf, 7, 10**400, "text", [], [1], {}, {"kind": 3}, {"kind": "Layer"}]
OPTIONAL = {"mlp", "q_norm", "k_norm", "window", "scaling", "attention_norm", "mlp_norm", "gate"}  # may be null


def fits(old: object, new: object, path: tuple[str | int, ...]) -> bool:
    """Whether a value may stand in place of another."""
    if new is None:
        return path[-1] in OPTIONAL if path else False
    if path == ("layers",):
        return new == []
    if type(old) is float:
        return type(new) in (int, float) and new != 10**400
    return type(new) is type(old) and not isinstance(new, dict | list)


@pytest.mark.parametrize("junk", JUNK, ids=lambda value: repr(value)[:20])
def test_a_value_of_another_kind_is_refused_with_its_place(junk: object) -> None:
    for path in PATHS:
        data = exchanged(path, copy.deepcopy(junk))
        if fits(at(path), junk, path):
            from_json(data)
            continue
        with pytest.raises(PackageError) as caught:
            from_json(data)
        assert f"the manifest's '{named(path)}" in str(caught.value), path
        assert len(str(caught.value)) < 300


def test_a_missing_field_is_refused_with_its_place() -> None:
    optional = {*OPTIONAL, "bias", "layers"}
    for path in PATHS:
        if path and isinstance(path[-1], str) and path[-1] not in optional:
            with pytest.raises(PackageError) as caught:
                from_json(exchanged(path, ...))
            assert str(caught.value) == f"the manifest's '{named(path[:-1])}' lacks '{path[-1]}'."


def test_an_unknown_field_is_refused_with_its_place() -> None:
    for path in PATHS:
        if isinstance(at(path), dict):
            with pytest.raises(PackageError) as caught:
                from_json(exchanged((*path, "unheard_of"), 30.0))
            assert str(caught.value) == (
                f"the manifest's '{named(path)}' has 'unheard_of', which this version does not know."
            )


@pytest.mark.parametrize("kind", ["LongRope", "Norm", "", 3, None, ["YarnScaling"], {}])
def test_a_scaling_of_an_unknown_kind_is_refused(kind: object) -> None:
    with pytest.raises(PackageError, match=r"'architecture\.rope\.scaling' is of a kind that this version does not"):
        from_json(exchanged(("rope", "scaling", "kind"), kind))


@pytest.mark.parametrize("data", [None, [], "decoder", 3, [{}]])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(PackageError, match=f"'architecture' is {type(data).__name__}; expected an object"):
        from_json(data)


def test_what_was_written_before_a_field_became_a_union_is_its_first_member() -> None:
    """A later version may let a layer's mlp be a mixture of experts; folders of today say nothing of kinds there."""
    decoder = describe(Config(tiny_config("llama")))
    mlp = json.loads(json.dumps(to_json(decoder)))["layers"][0]["mlp"]
    assert "kind" not in mlp
    assert _read_value(Mlp | Norm, mlp, "mlp") == decoder.layers[0].mlp
