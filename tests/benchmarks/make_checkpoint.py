"""Writes a checkpoint with random weights in the shape of a real model, for benchmarks without a download.

    python tests/benchmarks/make_checkpoint.py OUT [--shape 0.6b|1.5b|8b] [--tokenizer FOLDER] [--layers 28] [--repeats]

The shapes are those of Qwen3-0.6B (596 M parameters, tied), Qwen2.5-1.5B (1,544 M, tied, with biases) and Qwen3-8B
(8,191 M), in bf16. Weights are normal with deviation 0.02, from a fixed seed: a pool of 64 M
numbers, read from another place for each tensor. The tokenizer files come from a folder that
has them, such as the demo model's. Speed and memory do not depend on the values; quality cannot be measured with it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_QWEN = {
    "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": None, "hidden_act": "silu",
    "use_sliding_window": False, "torch_dtype": "bfloat16", "bos_token_id": 16375, "eos_token_id": 16377,
    "head_dim": 128,
}  # fmt: skip
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
          "max_position_embeddings": 40960, **_QWEN}  # fmt: skip
SHAPES = {
    "0.6b": {**_QWEN3, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "intermediate_size": 3072, "tie_word_embeddings": True},
    "1.5b": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 32768, **_QWEN,
             "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
             "intermediate_size": 8960, "tie_word_embeddings": True},
    "8b": {**_QWEN3, "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "intermediate_size": 12288, "tie_word_embeddings": False},
}  # fmt: skip
_POOL = 1 << 26
_WRITING = ("o_proj.weight", "down_proj.weight")  # what blocks add to the residual stream


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[k] * config["head_dim"] for k in ("num_attention_heads", "num_key_value_heads"))
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        tensors |= {
            f"{layer}.self_attn.q_proj.weight": (q, hidden),
            f"{layer}.self_attn.k_proj.weight": (kv, hidden),
            f"{layer}.self_attn.v_proj.weight": (kv, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, q),
            **extra(config, layer, q, kv),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
        }
    head = {} if config["tie_word_embeddings"] else {"lm_head.weight": (config["vocab_size"], hidden)}
    return tensors | {"model.norm.weight": (hidden,)} | head


def extra(config: dict, layer: str, q: int, kv: int) -> dict[str, tuple[int, ...]]:
    """What tells Qwen2's attention from Qwen3's: biases, or norms over the heads."""
    if config["model_type"] == "qwen2":
        return {f"{layer}.self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", q), ("k", kv), ("v", kv))}
    return {f"{layer}.self_attn.{part}_norm.weight": (config["head_dim"],) for part in ("q", "k")}


def slices(count: int, start: int) -> Iterator[slice]:
    """Of the pool, for that many numbers: from `start` on, and again from its beginning."""
    while count:
        stop = min(start + count, _POOL)
        yield slice(start, stop)
        count, start = count - (stop - start), 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=Path("embedllm/demo"))
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", action="store_true", help="blocks add nothing: greedy decoding repeats a token")
    options = parser.parse_args()
    config = dict(SHAPES[options.shape])
    config["num_hidden_layers"] = options.layers or config["num_hidden_layers"]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copyfile(options.tokenizer / name, options.out / name)
    header, offset = {}, 0
    for name, shape in shapes(config).items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    random = np.random.default_rng(0)
    normal = random.standard_normal(_POOL, dtype=np.float32) * np.float32(0.02)
    matrices, norms = ((values.view(np.uint32) >> 16).astype(np.uint16) for values in (normal, normal + 1))
    nothing = np.zeros_like(matrices)
    with (options.out / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes(config).items():
            pool = norms if name.endswith("norm.weight") else matrices
            if options.repeats and name.endswith(_WRITING):
                pool = nothing
            for part in slices(int(np.prod(shape)), int(random.integers(_POOL))):
                file.write(pool[part].data)


if __name__ == "__main__":
    main()
