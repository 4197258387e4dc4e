"""GPT-2, DistilGPT2: learned position embeddings; transposed weights (Conv1D)."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.default_sizes import with_default_sizes
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(
    model="transformer", embedding="wte", positions="wpe", layers="h", norm="ln_f", attention_norm="ln_1",
    mlp_norm="ln_2", qkv="attn.c_attn", o="attn.c_proj", gate="", up="mlp.c_fc", down="mlp.c_proj",
)  # fmt: skip
KEYS = {
    "hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
}  # fmt: skip


def describe(config: Config) -> Decoder:
    refuse(config, "scale_attn_weights", False)
    refuse(config, "scale_attn_by_inverse_layer_idx", True)
    refuse(config, "add_cross_attention", True)
    config = with_default_sizes(config.named(KEYS), "gpt2")
    shape = Shape(
        model_type="gpt2",
        names=NAMES,
        norm=NormKind(kind="layer", bias=True, key="layer_norm_epsilon", epsilon=1e-5),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        tied=True,
        activation_key="activation_function",
        activation="gelu_new",
        transposed=True,
        has_rope=False,
    )
    return describe_shaped(config.filled({"intermediate_size": 4 * config.integer("hidden_size")}), shape)
