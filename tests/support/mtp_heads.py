"""Tiny checkpoints with a multi-token prediction head (MTP), and what such a head computes, in torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

from embedllm.export import Recipe, convert
from embedllm.export.mtp import add_mtp
from tests.support.tiny import tiny_checkpoint
from tests.support.tiny_nextn import tiny_deepseek_v3, tiny_glm4_moe
from tests.support.tiny_recurrent import tiny_qwen3_5

if TYPE_CHECKING:
    import torch

_HIDDEN = 64  # of the tiny checkpoints
# of DeepSeek's layer behind the model's, as Qwen calls them
_QWEN_NAMES = {"eh_proj.weight": "mtp.fc.weight", "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
               "hnorm.weight": "mtp.pre_fc_norm_hidden.weight", "shared_head.norm.weight": "mtp.norm.weight",
               "shared_head.head.weight": "mtp.head.weight",
               "embed_tokens.weight": "mtp.embed_tokens.weight"}  # fmt: skip


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


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "qwen3": lambda folder: add_head(tiny_checkpoint(folder), layer=0),
    "qwen3_5": lambda folder: add_head(tiny_qwen3_5(folder), layer=1),  # a recurrent model, without paged attention
    "glm4_moe": tiny_glm4_moe,
    "deepseek_v3": tiny_deepseek_v3,
}


def package_with_head(checkpoint: Path) -> Path:
    """An export beside the checkpoint, in float32, with the head in its folder `mtp`."""
    folder = convert(checkpoint, checkpoint.parent / "package", Recipe(bits=32))
    add_mtp(folder, checkpoint, bits=32)
    return folder


def as_deepseeks(folder: Path, out: Path) -> Path:
    """The checkpoint with the names of DeepSeek, which GGUF's converters make of Qwen's."""
    config = json.loads((folder / "config.json").read_text())
    place, names = f"model.layers.{config['num_hidden_layers']}.", {new: old for old, new in _QWEN_NAMES.items()}
    shutil.copytree(folder, out)
    tensors = {f"{place}{names[name]}" if name in names else name.replace("mtp.layers.0.", place): value
               for name, value in load_file(folder / "model.safetensors").items()}  # fmt: skip
    save_file(tensors, out / "model.safetensors")
    return out


def torch_logits(folder: Path, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """What the head of a checkpoint gives, in float32: logits [T - 1, V], and the hidden states of the model [T, D].

    Source of the formula: DeepSeek-V3's report, section 2.2, and the published modelling code in vLLM
    (qwen3_next_mtp.py, deepseek_mtp.py, glm4_moe_mtp.py, read November 2026). The hidden states are those behind the
    model's last norm.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tensors = _named_as_qwens(folder, config.num_hidden_layers)
    head = transformers.AutoModelForCausalLM.from_pretrained(_as_a_model(folder, tensors), dtype=torch.float32).eval()
    own = {name: torch.from_numpy(value) for name, value in tensors.items()}
    offset = 1.0 if config.model_type.startswith("qwen3_5") else 0.0  # Qwen 3.5 stores norms less 1
    with torch.no_grad():
        ids = torch.tensor([tokens])
        hidden = model.model(ids).last_hidden_state
        table = own.get("mtp.embed_tokens.weight")
        embedded = model.get_input_embeddings()(ids) if table is None else table[ids]
        weights = [own[f"mtp.pre_fc_norm_{part}.weight"] + offset for part in ("embedding", "hidden")]
        parts = zip((embedded[:, 1:], hidden[:, :-1]), weights, strict=True)
        both = torch.cat([_normed(x, weight, config.rms_norm_eps) for x, weight in parts], dim=-1)
        x = both @ own["mtp.fc.weight"].T
        last = head.model(inputs_embeds=x).last_hidden_state
        matrix = own.get("mtp.head.weight")
        logits = model.lm_head(last) if matrix is None else last @ matrix.T
        return logits[0].numpy(), hidden[0].numpy()


def _named_as_qwens(folder: Path, layers: int) -> dict[str, np.ndarray]:
    place, found = f"model.layers.{layers}.", {}
    for name, value in load_file(folder / "model.safetensors").items():
        rest = name.removeprefix(place)
        found[name if rest == name else _QWEN_NAMES.get(rest, f"mtp.layers.0.{rest}")] = value
    return found


def _as_a_model(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    """The head's layer and norm as a checkpoint of a model."""
    out = folder.parent / f"{folder.name}-head"
    out.mkdir(exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "layer_types": ["full_attention"], "first_k_dense_replace": 0,
               "mlp_layer_types": ["sparse"]}  # fmt: skip
    (out / "config.json").write_text(json.dumps(config))
    kept = {name.replace("mtp.", "model."): value for name, value in tensors.items()
            if name.startswith(("mtp.layers.", "mtp.norm."))}  # fmt: skip
    others = {name: tensors[name] for name in ("model.embed_tokens.weight", "lm_head.weight") if name in tensors}
    save_file({**kept, **others}, out / "model.safetensors")
    return out


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weight
