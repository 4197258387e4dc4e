"""What config.json does not say is what transformers' configuration class takes for granted, for every family."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from embedllm.errors import EmbedError, ExportError
from embedllm.export.architectures import describe, families
from embedllm.export.architectures._shared.default_sizes import SIZES, with_default_sizes
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from tests.support.families import BASE, FAMILIES, Case

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

SECTIONS = ("text_config", "vision_config")
LEFT = {
    ("mistral3", "tie_word_embeddings"),  # transformers 4 asked the text model, and so were published ones saved
    ("nemotron_h", "layers_block_type"),  # refused: no model has the four blocks that the class takes for granted
}


@cache
def classes() -> dict[str, Any]:
    """Configuration classes by model_type, but Apertus 1.5's, which has no small vocabulary."""
    mapping = transformers.CONFIG_MAPPING
    return {name: mapping[name] for name in families() if name in mapping and name != "apertus1p5"}


def as_json(config: PreTrainedConfig) -> dict[str, Any]:
    """All keys of a configuration; its to_json_string() has infinity as no class reads it."""
    return json.loads(json.dumps(config.to_dict()))


def whole_config(case: Case) -> dict[str, Any]:
    """A case's config.json, which says all."""
    values = {key: value for key, value in {**BASE, **case.values}.items() if value is not ...}
    own = getattr(transformers, case.config_class)
    config = as_json(own(**copy.deepcopy(values)))
    if own.model_type != case.family:
        assert case.rearranged is not None
        config = case.rearranged({}, config)[1]
    return config


def lacking(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key, and the config without it."""
    for name in (None, *SECTIONS):
        for key in config if name is None else config.get(name) or ():
            if key in ("model_type", *SECTIONS):
                continue
            less = copy.deepcopy(config)
            del (less if name is None else less[name])[key]
            yield key, less


def described(config: dict[str, Any]) -> Decoder | None:
    try:
        return describe(Config(config))
    except EmbedError:
        return None


@pytest.mark.parametrize("name", [name for name, case in FAMILIES.items() if case.family in classes()])
def test_a_key_that_is_absent_is_the_default_of_the_class(name: str) -> None:
    case, compared = FAMILIES[name], 0
    whole = whole_config(case)
    assert described(whole) is not None
    for key, less in lacking(whole):
        try:
            filled = classes()[case.family].from_dict(copy.deepcopy(less))
        except Exception:  # noqa: BLE001  # the class has no default, or one that the case's other keys contradict
            continue
        if (case.family, key) not in LEFT:
            expected = described(as_json(filled))
            assert described(less) == expected, key
            compared += 1
    assert compared > 10


def test_every_default_size_is_that_of_the_class() -> None:
    """Sizes that a tiny model cannot show, as more layers than it has tensors."""
    for family, own in classes().items():
        names = {name: own.attribute_map.get(name, name) for name in SIZES}
        defaults = {name: getattr(own, theirs, None) for name, theirs in names.items()}
        found = with_default_sizes(Config({}), family)
        if "text_config" not in own.sub_configs:
            sizes = {name: value for name, value in defaults.items() if type(value) is int}
            assert {name: found.value(name) for name in sizes} == sizes, family


def test_a_size_that_is_null_follows_from_the_others() -> None:
    config = {"model_type": "seed_oss", **BASE, "head_dim": None}
    attention = describe(Config(config)).layers[0].attention
    assert isinstance(attention, Attention)
    assert attention.head_dim == 16


def test_a_text_model_without_what_its_class_has_is_described() -> None:
    """As transformers writes a 'text_config': what equals the defaults of the class is left out."""
    text = {"model_type": "llama", "num_key_value_heads": 8, "max_position_embeddings": 131_072}
    values = {"text_config": text, "image_token_id": 128_257, "vision_config": {"model_type": "idefics3_vision"}}
    with pytest.raises(ExportError, match="image_token_id is 128257"):  # the whole text model is described before it
        describe(Config({"model_type": "idefics3", **values}))
