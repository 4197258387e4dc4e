"""OLMo 3: OLMo 2 with sliding windows on three of four layers, whose RoPE is not scaled."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import SLIDING, RopeKeys, describe_rope
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.olmo2 import NAMES
from embedllm.package.architecture.decoder import Decoder

_THETA = 500_000.0


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    head_dim = config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads"))
    local = describe_rope(config, head_dim, RopeKeys(theta=_THETA, layers=SLIDING))
    own = describe_rope(config, head_dim, RopeKeys(theta=_THETA))
    sliding = sliding_layers(config, all_but_every(4))
    shape = Shape(
        model_type="olmo3",
        names=NAMES,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="all",
        rope_keys=RopeKeys(theta=_THETA),
        local_rope=None if local == own else local,  # one table where both turn alike
        rope=lambda index: int(sliding[index] and local != own),
        window=windows(config, 4096, sliding),
    )
    return describe_shaped(config, shape)
