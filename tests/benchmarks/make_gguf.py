"""Writes the checkpoint of make_checkpoint.py as a GGUF file, for llama.cpp to be measured with.

    pip install gguf
    python tests/benchmarks/make_gguf.py /tmp/q06 /tmp/q06-q4_0.gguf [--type Q4_1]

Every matrix in one type, the tied embedding too: in Q4_0 by default, blocks of 32 with a float16 scale, 4.5 bits a
weight as in our folders with groups of 32; in Q4_1 each block has a minimum besides. Norms in float32. Qwen3 shapes
only. The tokenizer is a list of as many made-up tokens as the model has: token ids are all that a benchmark feeds.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from embedllm.files.safetensors_header import Tensor, read_header

gguf: Any = importlib.import_module("gguf")  # it may be missing
_LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_OTHER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def name_of(name: str) -> str:
    """llama.cpp's name of a tensor of a Hugging Face checkpoint."""
    if name in _OTHER:
        return _OTHER[name]
    _, _, number, rest = name.split(".", 3)
    return f"blk.{number}.{_LAYER[rest.removesuffix('.weight')]}.weight"


def floats(tensor: Tensor) -> np.ndarray:
    """A bfloat16 tensor as float32."""
    halves = np.fromfile(tensor.file, np.uint16, tensor.length // 2, offset=tensor.offset)
    return (halves.astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)


def describe(writer: Any, config: dict[str, Any], kind: str) -> None:  # noqa: ANN401 - of gguf
    """The shape, and tokens by number."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    count = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["t", "0", "t0", *(f"t{number}" for number in range(3, count))])
    writer.add_token_types([gguf.TokenType.NORMAL] * count)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(config["eos_token_id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q4_0", help="of the matrices: Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0")
    options = parser.parse_args()
    config = json.loads((options.checkpoint / "config.json").read_text())
    if config["model_type"] != "qwen3":
        parser.error(f"{options.checkpoint} is of type {config['model_type']}; expected qwen3.")
    writer = gguf.GGUFWriter(options.out, "qwen3")
    describe(writer, config, options.type)
    for name, tensor in read_header(options.checkpoint / "model.safetensors").tensors.items():
        values = floats(tensor)
        kind = gguf.GGMLQuantizationType[options.type if values.ndim == 2 else "F32"]
        writer.add_tensor(name_of(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
