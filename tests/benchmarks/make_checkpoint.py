"""Writes a checkpoint with random weights in the shape of a real model, for benchmarks without a download.

    python tests/benchmarks/make_checkpoint.py OUT [--tokenizer FOLDER] [--layers 28]

The shape is Qwen3-0.6B's (596 M parameters, bf16, tied). Weights are normal with deviation 0.02, from a fixed seed;
the tokenizer files come from a folder that has them, such as the demo model's. Speed and memory do not depend on the
values; quality cannot be measured with it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "rope_scaling": None, "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "silu",
    "use_sliding_window": False, "torch_dtype": "bfloat16", "bos_token_id": 16375, "eos_token_id": 16377,
}  # fmt: skip


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
            f"{layer}.self_attn.q_norm.weight": (config["head_dim"],),
            f"{layer}.self_attn.k_norm.weight": (config["head_dim"],),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
        }
    return tensors | {"model.norm.weight": (hidden,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=Path("embedllm/demo"))
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    options = parser.parse_args()
    config = {**CONFIG, "num_hidden_layers": options.layers}
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
    with (options.out / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes(config).values():
            values = random.standard_normal(shape, dtype=np.float32)
            values *= 0.02
            if len(shape) == 1:
                values += 1
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


if __name__ == "__main__":
    main()
