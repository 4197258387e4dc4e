"""The rotation of each kind of layer, of families whose global layers rotate a part of a head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedllm.errors import ExportError
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from tests.support.tiny import tiny_config

OWN = {
    "lfm3": {"layer_types": ["sliding_attention", "full_attention"]},
    "gemma4_text": {"layer_types": ["sliding_attention", "full_attention"], "vocab_size_per_layer_input": 307},
}
WITHOUT_BASE = {"full_attention": {"rope_type": "proportional", "rope_theta": 3e5}, "sliding_attention": {}}


def config_of(family: str, **keys: object) -> dict[str, object]:
    config = {**tiny_config("llama"), "model_type": family, **OWN[family], "hidden_act": None, **keys}
    return {key: value for key, value in config.items() if value is not None}


@pytest.mark.parametrize(("family", "rope_parameters"), [("lfm3", None), ("gemma4_text", None), ("lfm3", WITHOUT_BASE)])
@pytest.mark.parametrize("rope_theta", [None, 5e5])
def test_a_base_that_the_config_leaves_out_is_that_of_transformers(
    family: str, rope_parameters: object, rope_theta: float | None, tmp_path: Path
) -> None:
    """'rope_theta' counts where 'rope_parameters' have none, and not where there are the family's own."""
    transformers = pytest.importorskip("transformers")
    config = config_of(family, rope_theta=rope_theta, rope_parameters=rope_parameters)
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    decoder = describe(Config(config))
    assert decoder.local_rope is not None
    bases = {"full_attention": decoder.rope.base, "sliding_attention": decoder.local_rope.base}
    assert bases == {kind: theirs[kind]["rope_theta"] for kind in bases}


@pytest.mark.parametrize("family", OWN)
def test_a_proportional_rotation_without_a_base_is_refused(family: str) -> None:
    parameters = {"full_attention": {"rope_type": "proportional"}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(ExportError, match=r"rope_parameters.* has no 'rope_theta'"):
        describe(Config(config_of(family, rope_theta=None, rope_parameters=parameters)))
