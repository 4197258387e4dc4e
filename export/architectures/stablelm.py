"""StableLM 2 1.6B, 3B-4E1T, Zephyr: layer norms, partial rotary embedding (25%)."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import LLAMA, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    refuse(config, "qk_layernorm", True)  # of StableLM 2 12B, which has a tensor for each head
    parallel = config.flag("use_parallel_residual", False)
    shape = Shape(
        model_type="stablelm",
        names=replace(LLAMA, mlp_norm="") if parallel else LLAMA,
        norm=NormKind(kind="layer", bias=True, key="layer_norm_eps", epsilon=1e-5),
        qkv_bias=config.flag("use_qkv_bias", False),
        rope_keys=RopeKeys(part=0.25),
        parallel=parallel,
    )
    return describe_shaped(config, shape)
