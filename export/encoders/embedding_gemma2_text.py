"""EmbeddingGemma 2 (text only): bidirectional attention, larger heads in global layers, PLE without a table."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.parts import RMS, activation
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma4_text import describe_text as describe_gemma4
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Dense, Encoder
from embedllm.package.architecture.layer import Layer, PerLayerEmbedding, PerLayerInput
from embedllm.package.architecture.weights import Linear

_ROPES = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
_DEFAULTS = {"vocab_size": 262_144, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 24,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 262_144,
             "sliding_window": 512, "rope_parameters": _ROPES}  # fmt: skip
# what Gemma 4 has and this not, whatever config.json says
_WITHOUT = {"hidden_size_per_layer_input": 0, "enable_moe_block": False, "attention_k_eq_v": False,
            "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "use_bidirectional_attention": None,
            "final_logit_softcapping": None, "tie_word_embeddings": True}  # fmt: skip


def describe(config: Config) -> Decoder:
    return describe_text(config, "embedding_gemma2_text", "")


def describe_text(config: Config, model_type: str, place: str) -> Decoder:
    """The encoder whose tensors have names that begin with `place`: Gemma 4's layers, each with a PLE block."""
    config = config.filled(_DEFAULTS)
    size = config.integer("hidden_size_per_layer_input", 512)
    decoder = describe_gemma4(_as_gemma4(config), model_type, place)
    prefix = f"{place}." if place else ""
    columns, layers = decoder.hidden, tuple(_layer(config, layer, index, size, prefix)
                                            for index, layer in enumerate(decoder.layers))  # fmt: skip
    norm = RMS.named(config, "per_layer_embedding.norm", f"{prefix}ple.per_layer_projection_norm", size)
    projection = Linear(name="per_layer_embedding.projection", source=f"{prefix}ple.per_layer_model_projection",
                        rows=len(layers) * size, columns=columns)  # fmt: skip
    # the norm of a projection that is divided by sqrt(hidden)
    per_layer = PerLayerEmbedding(
        projection=projection, norm=replace(norm, epsilon=norm.epsilon * columns), multiplier=1.0
    )
    # of each token in transformers, which is the same: means are linear
    own = Linear(name="embedding_projection", source=f"{prefix}embedding_projection",
                 rows=config.integer("embedding_dim", 768), columns=columns)  # fmt: skip
    encoder = Encoder(pooling="mean", dense=(Dense(linear=own),))
    return replace(decoder, layers=layers, head=decoder.embedding, per_layer_embedding=per_layer, encoder=encoder)


def _as_gemma4(config: Config) -> Config:
    """Global layers have one key/value head by default, whatever their keys and values are."""
    if not config.has("per_layer_config"):
        sliding = sliding_layers(config, all_but_every(6))
        own = {"head_dim": config.integer("global_head_dim", 512),
               "num_key_value_heads": config.integer("num_global_key_value_heads", 1)}  # fmt: skip
        each = {str(at): own for at, has in enumerate(sliding) if not has or at == len(sliding) - 1}
        config = config.replaced({"per_layer_config": each})
    return config.replaced(_WITHOUT)


def _layer(config: Config, layer: Layer, index: int, size: int, prefix: str) -> Layer:
    """With a window to both sides, and its per-layer embeddings."""
    attention, place, hidden = layer.attention, f"{prefix}layers.{index}.ple_block", layer.attention.o.rows
    assert isinstance(attention, Attention)  # as Gemma 4 has
    window = None if attention.window is None else attention.window + 1
    name = f"layers.{index}.per_layer_input"
    block = PerLayerInput(
        gate=Linear(name=f"{name}.gate", source=f"{place}.per_layer_input_gate", rows=size, columns=hidden),
        up=Linear(name=f"{name}.up", source=f"{place}.per_layer_projection", rows=hidden, columns=size),
        norm=RMS.named(config, f"{name}.norm", f"{place}.post_per_layer_input_norm", hidden),
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
    )
    return replace(layer, attention=replace(attention, window=window), per_layer_input=block)
