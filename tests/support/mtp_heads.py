"""Tiny checkpoints with a multi-token prediction head (MTP), and what such a head computes, in torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

if TYPE_CHECKING:
    import torch

_HIDDEN = 64  # of the tiny checkpoints


def add_head(folder: Path, *, layer: int, seed: int = 7) -> Path:
    """A tiny checkpoint with a head, whose layer has the shapes of the model's layer of that number."""
    tensors = load_file(folder / "model.safetensors")
    random, prefix = np.random.default_rng(seed), f"model.layers.{layer}."
    shapes = {f"mtp.layers.0.{name.removeprefix(prefix)}": value.shape for name, value in tensors.items()
              if name.startswith(prefix)}  # fmt: skip
    shapes |= {"mtp.fc.weight": (_HIDDEN, 2 * _HIDDEN)}
    shapes |= {f"mtp.{name}.weight": (_HIDDEN,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        tensors[name] = values / np.float32(shape[-1] ** 0.5) if len(shape) > 1 else 1 + values / 10
    save_file(tensors, folder / "model.safetensors")
    return folder


def torch_logits(folder: Path, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """What the head of a checkpoint gives, in float32: logits [T - 1, V], and the hidden states of the model [T, D].

    Source of the formula: the published modelling code of Qwen3-Next and Qwen 3.5 in vLLM (qwen3_next_mtp.py, read
    November 2026). The hidden states are those behind the model's last norm.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    values = {**config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    head = transformers.AutoModelForCausalLM.from_config(type(config)(**values), dtype=torch.float32).eval()
    own = {name: torch.from_numpy(value) for name, value in load_file(folder / "model.safetensors").items()}
    layers = {name.replace("mtp.", "model."): value for name, value in own.items()
              if name.startswith(("mtp.layers.", "mtp.norm."))}  # fmt: skip
    missing = head.load_state_dict(layers, strict=False)
    assert not missing.unexpected_keys
    offset = 0.0 if config.model_type == "qwen3" else 1.0  # Qwen 3.5 stores norms less 1
    with torch.no_grad():
        ids = torch.tensor([tokens])
        hidden = model.model(ids).last_hidden_state
        embedded = model.get_input_embeddings()(ids)
        weights = [own[f"mtp.pre_fc_norm_{part}.weight"] + offset for part in ("embedding", "hidden")]
        parts = zip((embedded[:, 1:], hidden[:, :-1]), weights, strict=True)
        both = torch.cat([_normed(x, weight, config.rms_norm_eps) for x, weight in parts], dim=-1)
        x = both @ own["mtp.fc.weight"].T
        last = head.model(inputs_embeds=x).last_hidden_state
        return model.lm_head(last)[0].numpy(), hidden[0].numpy()


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weight
