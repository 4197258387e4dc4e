"""What the training of an EAGLE-3 head rests on: its guesses in a row are those of decoding; its prompts."""

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

_TOOL = Path(__file__).parents[2] / "tools" / "train_eagle_head"
_LAYERS = (1, 2, 3)
_TOKENS = [5, 6, 7, 8, 9, 40, 41, 42, 43]


@pytest.fixture(scope="module")
def trainer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_eagle_head_head", _TOOL / "head.py")
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
    spread = torch.tensor([0.5, 2.0, 4.0]).repeat_interleave(model.config.hidden_size)  # exact in float16
    size = trainer.Size(layers=_LAYERS, vocabulary=DRAFT_VOCABULARY, heads=4, kv_heads=2, head_dim=16, intermediate=96)
    head = trainer.Head(model, size, torch.arange(0, 7 * DRAFT_VOCABULARY, 7), spread).half().float()
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
    further = trainer.Head(model, size, torch.arange(0, 7 * DRAFT_VOCABULARY, 7), 2 * spread)
    further.take(head.tensors(VOCABULARY))  # the same, whatever features are divided by to learn
    with torch.no_grad():
        again = further.unrolled(model.get_input_embeddings()(ids[:, 1:]), features, 4)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(again, made, strict=True))


class _Characters:
    """A tokenizer that has a token for each character, and what the user says as the whole of a chat."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        return messages[-1]["content"]

    def encode(self, text: str, **_: object) -> list[int]:
        return [ord(character) for character in text]


@pytest.mark.peer
def test_prompts_of_templates_are_filled_and_leave_out_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(_TOOL)
    prompts = importlib.import_module("prompts")
    for name in ("prompts", "general"):
        sys.modules.pop(name)  # plain names, that another tool may have too
    for name in ("chat_validation", "fresh_slots", "tldr_pairs"):
        (tmp_path / f"{name}.jsonl").write_text("", encoding="utf-8")
    text = "The river carries fine sand down to the sea. " * 4
    lines = [json.dumps({"text": text.strip()})] * 2  # the first is held out
    (tmp_path / "validation.jsonl").write_text("\n".join(lines), encoding="utf-8")

    def made(measured: list[str]) -> list[tuple[str, str]]:
        found = prompts.Prompts(tmp_path, _Characters(), seed=3, general=900, measured=measured).trained
        return [(prompt.kind, "".join(map(chr, prompt.tokens))) for prompt in found]

    every = [each for each in made([]) if each[0] != "text"]
    assert len({kind for kind, _ in every}) == 9
    assert not [asked for _, asked in every if "{" in asked or not asked.strip()]
    measured = [asked.upper().replace(" ", "  ") for _, asked in every[::3]]
    left = {asked for _, asked in made(measured)}
    assert left
    assert not left & {asked for _, asked in every[::3]}
