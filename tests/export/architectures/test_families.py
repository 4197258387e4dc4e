"""Every family against transformers: tiny random models of its own config classes (tests/support/families.py)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from embedllm.backends.reference.engine import ReferenceSession
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource, read_json
from embedllm.export.checkpoints.tensor_mapping import check_matrix, check_vector, read_matrix
from embedllm.export.quantization.float_forward import Checkpoint
from embedllm.files.safetensors_header import read_header
from embedllm.hub.location import Location
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Linear
from embedllm.package.tensors import linears, outer_matrices, small_matrices, tables, vectors, vision_runs
from tests.support.families import FAMILIES, WINDOW, make_checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

PROMPT, STEPS = 3 * WINDOW, 8  # tokens
CONTEXT = 64
TOLERANCE = 1e-3  # of the spread of the logits; both sides compute in float32
# what is no text model's, and a head that is stored beside the embedding that it is tied to
LEFT = ("visual.", "lm_head.weight", "vision_tower.", "vision_model.", "multi_modal_projector.", "model.visual.")
EXPERT = re.compile(r"(\.experts)\.(\d+)\.(gate|up|down)_proj$")  # those of a layer may be one tensor
CONVOLUTION = re.compile(r"\.[qkv]_conv1d\.")  # of which three may stand for one
PRE_NORMS = (("input_layernorm", "attention_layer_norm"), ("post_attention_layernorm", "feedforward_layer_norm"))
CONSTANTS = ("act_fn.beta", "act_fn.eps")  # the same in every checkpoint


class Made(NamedTuple):
    """A case's checkpoint, and what transformers makes of the tokens."""

    folder: Path
    tokens: list[int]
    logits: np.ndarray  # [T, V]


class Floats(Checkpoint):
    """An engine of a checkpoint's own floats: what the reference needs to run a session without an export."""

    context, remedy = CONTEXT, ""

    def __init__(self, folder: Path) -> None:
        self.source = HuggingFaceSource(Location(folder, folder.name))
        self.decoder: Decoder = describe(Config(self.source.config), CONTEXT)
        super().__init__(self.source, self.decoder, CONTEXT)
        for linear in matrices(self.decoder):
            check_matrix(self.source, linear)
        for vector in vectors(self.decoder):
            check_vector(self.source, vector)

    def rows(self, linear: Linear, tokens: Sequence[int]) -> np.ndarray:
        return np.concatenate([read_matrix(self.source, linear, token, token + 1) for token in tokens])


def matrices(decoder: Decoder) -> list[Linear]:
    found = [linear for layer in decoder.layers for linear in linears(layer)]
    found += [linear for run in vision_runs(decoder) for linear in run]
    return [*found, *small_matrices(decoder), *outer_matrices(decoder), *tables(decoder), decoder.head]


def reference_logits(made: Made) -> np.ndarray:
    """Of all tokens: the prompt at once, then the rest one by one."""
    floats = Floats(made.folder)
    with contextlib.closing(floats.source):
        session = ReferenceSession(floats)  # type: ignore[arg-type]  # it has what a session reads
        prompt = session.feed_all(made.tokens[:PROMPT])
        steps = [session.feed_all([token]) for token in made.tokens[PROMPT:]]
    return np.concatenate([prompt, *steps])


ENGINES: dict[str, Callable[[Made], np.ndarray]] = {"reference": reference_logits}


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("family")
    model = make_checkpoint(folder, FAMILIES[request.param])
    tokens = np.random.default_rng(1).integers(0, 300, PROMPT + STEPS).tolist()
    with torch.no_grad():
        return Made(folder, tokens, model(torch.tensor([tokens])).logits[0].numpy())


@pytest.mark.parametrize("engine", ENGINES)
def test_logits_follow_transformers(made: Made, engine: str) -> None:
    """A prompt longer than the window and the steps after it."""
    spread = made.logits.std()
    assert spread > 0.3  # else a term could be missing unseen
    found = ENGINES[engine](made)
    assert np.abs(found - made.logits).max() <= TOLERANCE * spread


def test_every_tensor_of_a_checkpoint_is_read(made: Made) -> None:
    """None is forgotten: transformers has no weights that the description does not know."""
    decoder = describe(Config(read_json(made.folder / "config.json", "a configuration")))
    read = {f"{linear.source}.weight" for linear in matrices(decoder)} | {v.source for v in vectors(decoder)}
    read |= {name.partition(".")[2] for name in read}  # of a checkpoint that was saved without its head
    read |= {name.removesuffix(".weight") for name in read} | {
        name.replace("_proj.bias", "_proj_bias") for name in read
    }
    read |= {name.replace("vision_tower.vision_model.", "vision_tower.") for name in read}  # of transformers 5
    read |= {EXPERT.sub(r"\1.\3_proj", name) for name in read} | {EXPERT.sub(r"\1.gate_up_proj", name) for name in read}
    read |= {name.replace(ours, theirs) for name in read for ours, theirs in PRE_NORMS}  # of OLMo Hybrid
    stored = set(read_header(made.folder / "model.safetensors").tensors)
    stored = {CONVOLUTION.sub(".conv1d.", name) for name in stored}
    assert [name for name in sorted(stored - read) if not name.startswith(LEFT) and not name.endswith(CONSTANTS)] == []
