"""What the training of an EAGLE-3 head rests on: its guesses in a row are those of decoding."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.support.eagle_heads import DRAFT_VOCABULARY, VOCABULARY, torch_logits
from tests.support.tiny import tiny_checkpoint

_SOURCE = Path(__file__).parents[2] / "tools" / "train_eagle_head" / "head.py"
_LAYERS = (1, 2, 3)
_TOKENS = [5, 6, 7, 8, 9, 40, 41, 42, 43]


@pytest.fixture(scope="module")
def trainer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_eagle_head_head", _SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # where dataclasses look for their annotations
        spec.loader.exec_module(module)
    return module


@pytest.mark.peer
def test_each_guess_in_a_row_sees_what_it_sees_in_decoding(trainer: ModuleType, tmp_path: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", num_hidden_layers=4)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    torch.manual_seed(0)
    size = trainer.Size(layers=_LAYERS, vocabulary=DRAFT_VOCABULARY, heads=4, kv_heads=2, head_dim=16, intermediate=96)
    head = trainer.Head(model, size, torch.arange(0, 7 * DRAFT_VOCABULARY, 7)).half().float()
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text(json.dumps(head.config(model.config)), encoding="utf-8")
    save_file(head.tensors(VOCABULARY), tmp_path / "head" / "model.safetensors")
    with torch.no_grad():
        ids = torch.tensor([_TOKENS])
        states = model.model(ids, output_hidden_states=True).hidden_states
        features = torch.cat([states[layer] for layer in _LAYERS], dim=-1)[:, :-1]
        made = head.unrolled(model.get_input_embeddings()(ids[:, 1:]), features, 4)
    for own, logits in enumerate(made):
        for count in (6, len(_TOKENS)):
            wanted = torch_logits(checkpoint, tmp_path / "head", _TOKENS[:count], layers=_LAYERS, own=own)[-1]
            assert np.abs(logits[0, count - 2].numpy() - wanted).max() < 1e-4
