"""Tiny checkpoints of EAGLE-3 heads, and what such a head computes, in torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

if TYPE_CHECKING:
    import torch

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 4, 2, 16, 96
VOCABULARY, DRAFT_VOCABULARY = 307, 41  # of the tiny checkpoints; of the head
_EPSILON = 1e-5


def tiny_eagle(folder: Path, *, is_of_speculators: bool = False, theta: float = 10000.0, **changes: object) -> Path:
    """A head for the tiny checkpoints, in the layout of SGLang or of speculators. changes: of its config.json."""
    random = np.random.default_rng(11)
    layer = "layers.0." if is_of_speculators else "midlayer."
    shapes = {
        "fc": (HIDDEN, 3 * HIDDEN),
        f"{layer}self_attn.q_proj": (HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.k_proj": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.v_proj": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        f"{layer}mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        f"{layer}mlp.up_proj": (INTERMEDIATE, HIDDEN),
        f"{layer}mlp.down_proj": (HIDDEN, INTERMEDIATE),
        "lm_head": (DRAFT_VOCABULARY, HIDDEN),
    }
    tensors = {f"{name}.weight": (random.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
               for name, shape in shapes.items()}  # fmt: skip
    for name in (f"{layer}input_layernorm", f"{layer}hidden_norm", f"{layer}post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = (1 + random.standard_normal(HIDDEN) / 10).astype(np.float32)
    tokens = np.sort(random.choice(VOCABULARY, DRAFT_VOCABULARY, replace=False))
    tensors["d2t"] = tokens - np.arange(DRAFT_VOCABULARY)
    tensors["t2d"] = np.isin(np.arange(VOCABULARY), tokens)
    shape = {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": HEADS,
             "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": INTERMEDIATE,
             "vocab_size": VOCABULARY, "max_position_embeddings": 64, "rms_norm_eps": _EPSILON, "rope_theta": theta,
             "hidden_act": "silu"}  # fmt: skip
    outer: dict[str, object] = {"draft_vocab_size": DRAFT_VOCABULARY}
    if is_of_speculators:
        outer |= {"architectures": ["Eagle3Speculator"], "transformer_layer_config": shape}
    else:
        outer |= {"architectures": ["LlamaForCausalLMEagle3"], **shape}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**outer, **changes}), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


def draft_tokens(folder: Path) -> np.ndarray:
    """The token of each row of a head's matrix."""
    return load_file(folder / "model.safetensors")["d2t"] + np.arange(DRAFT_VOCABULARY)


def torch_logits(
    target: Path, head: Path, tokens: list[int], *, layers: tuple[int, ...], own: int = 0, theta: float = 10000.0
) -> np.ndarray:
    """What a head gives in float32 for a text, [T - 1, draft vocabulary].

    layers: how many of the target model's lie before each hidden state that is read. own: of the last rows, those that
    read what the head's norm has read for the token before, in place of the target model's hidden states.
    Source of the formula: SGLang's llama_eagle3.py (read November 2026).
    """
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    tensors = {name.replace("layers.0.", "midlayer."): torch.from_numpy(value).float()
               for name, value in load_file(head / "model.safetensors").items()}  # fmt: skip
    config = json.loads((head / "config.json").read_text())
    how = {"theta": theta, "epsilon": float(config.get("transformer_layer_config", config)["rms_norm_eps"]),
           "normed_residual": bool(config.get("norm_before_residual"))}  # fmt: skip
    with torch.no_grad():
        ids = torch.tensor([tokens])
        states = model.model(ids, output_hidden_states=True).hidden_states
        embedded = model.get_input_embeddings()(ids)[0, 1:]
        hidden = torch.cat([states[layer][0] for layer in layers], dim=-1)[:-1] @ tensors["fc.weight"].T
        for row in range(len(hidden) - own, len(hidden)):
            _, streams = _layer(tensors, embedded, hidden, **how)
            hidden[row] = streams[row - 1]
        return _layer(tensors, embedded, hidden, **how)[0].numpy()


def _layer(
    tensors: dict[str, torch.Tensor], embedded: torch.Tensor, hidden: torch.Tensor, *, theta: float,
    epsilon: float, normed_residual: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    import torch
    from torch.nn.functional import scaled_dot_product_attention, silu

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * tensors[f"{name}.weight"]

    def product(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ tensors[f"midlayer.{name}_proj.weight"].T

    normed_hidden = normed(hidden, "midlayer.hidden_norm")
    both = torch.cat([normed(embedded, "midlayer.input_layernorm"), normed_hidden], dim=-1)
    q, k, v = (product(both, f"self_attn.{part}").unflatten(-1, (-1, HEAD_DIM)).transpose(0, 1) for part in "qkv")
    angles = torch.arange(len(hidden))[:, None] * theta ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = (torch.cat([part, part], dim=-1) for part in (angles.cos(), angles.sin()))
    q, k = (x * cos + torch.cat([-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]], dim=-1) * sin for x in (q, k))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=0) for x in (k, v))
    context = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
    stream = (normed_hidden if normed_residual else hidden) + product(context, "self_attn.o")
    x = normed(stream, "midlayer.post_attention_layernorm")
    stream = stream + product(silu(product(x, "mlp.gate")) * product(x, "mlp.up"), "mlp.down")
    return normed(stream, "norm") @ tensors["lm_head.weight"].T, stream
