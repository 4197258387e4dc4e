"""What GGUF files of vision encoders (mmproj files) say, as their family's config.json says it.

Source: MmprojModel and its families in conversion/*.py of llama.cpp, and tools/mtmd/clip.cpp for what it takes for
granted. What no file says is the family's rule in transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.config import Config

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import Placed

    Tensors: TypeAlias = Mapping[str, Placed]

UP, DOWN = "v.blk.{}.ffn_up", "v.blk.{}.ffn_down"
SCALE, MERGE = "vision.projector.scale_factor", "vision.spatial_merge_size"
WINDOWS, WINDOW, DEEPSTACK = "vision.n_wa_pattern", "vision.window_size", "vision.is_deepstack_layers"
BASE = "rope.freq_base"
TEMPORAL = 2  # of a patch, in all of Qwen's
ACTIVATIONS = ("use_gelu", "use_silu")  # with neither it is QuickGELU
_POSITIONS = "v.position_embd.weight"


def said_activation(own: Config) -> str:
    return "".join(key for key in ACTIVATIONS if own.flag(key, False))


def _sizes(own: Config, tensors: Tensors) -> dict[str, object]:
    """Of the layers, which are never more than there are tensors for.

    The MLP's size is the tensor's: files of Qwen2-VL say another one.
    """
    hidden, layers = own.integer("vision.embedding_length"), own.integer("vision.block_count")
    blocks = {name.split(".")[2] for name in tensors if name.startswith("v.blk.")}
    if layers > len(blocks):
        raise ExportError(f"the vision encoder has tensors of {len(blocks)} layers; its metadata calls for {layers}.")
    up = tensors.get(f"{UP.format(0)}.weight")
    if up is None or len(up.shape) != 2 or hidden not in up.shape:
        shape = "no tensor" if up is None else f"{list(up.shape)} as the tensor"
        raise ExportError(f"the vision encoder has {shape} '{UP.format(0)}.weight'; expected a matrix of {hidden}.")
    rows, columns = up.shape
    return {
        "hidden_size": hidden,
        "intermediate_size": rows if columns == hidden else columns,
        "num_hidden_layers": layers,
        "num_attention_heads": own.integer("vision.attention.head_count"),
        "patch_size": own.integer("vision.patch_size"),
    }


def _siglip(own: Config, tensors: Tensors) -> dict[str, object]:
    epsilon = own.number("vision.attention.layer_norm_epsilon", 1e-6, above=0)
    return {**_sizes(own, tensors), "image_size": own.integer("vision.image_size"), "layer_norm_eps": epsilon,
            "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip


def idefics3(own: Config, tensors: Tensors) -> dict[str, object]:
    return {"vision_config": _siglip(own, tensors), "scale_factor": own.integer(SCALE, 2)}


def gemma3(own: Config, tensors: Tensors) -> dict[str, object]:
    vision = _siglip(own, tensors)
    side = own.integer("vision.image_size") // own.integer("vision.patch_size") // own.integer(SCALE, 4)
    return {"vision_config": vision, "mm_tokens_per_image": side * side}


def _qwen(own: Config, tensors: Tensors) -> dict[str, object]:
    """Without the epsilon of its norms: transformers has a fixed one, files the text model's."""
    return {
        **{_QWEN_KEYS.get(key, key): value for key, value in _sizes(own, tensors).items()},
        "out_hidden_size": own.integer("vision.projection_dim"),
        "spatial_merge_size": own.integer(MERGE, 2),
        "temporal_patch_size": TEMPORAL,
    }


_QWEN_KEYS = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}


def qwen2(own: Config, tensors: Tensors) -> dict[str, object]:
    vision = _qwen(own, tensors)
    vision |= {"embed_dim": vision.pop("hidden_size"), "hidden_size": vision.pop("out_hidden_size")}
    return {"vision_config": vision}


def qwen2_5(own: Config, tensors: Tensors) -> dict[str, object]:
    """Every n-th layer attends to the whole image, the others have windows."""
    every, vision = own.integer(WINDOWS), _qwen(own, tensors)
    full = [index for index in range(own.integer("vision.block_count")) if (index + 1) % every == 0]
    window = own.integer(WINDOW, 112)
    return {"vision_config": {**vision, "window_size": window, "fullatt_block_indexes": full}}


def qwen3(own: Config, tensors: Tensors) -> dict[str, object]:
    vision = _qwen(own, tensors)
    flags = own.value(DEEPSTACK) or []
    if not isinstance(flags, list):
        raise ExportError(f"'clip.{DEEPSTACK}' is {flags!r}; expected a truth for each layer.")
    if (positions := tensors.get(_POSITIONS)) is not None:
        vision["num_position_embeddings"] = positions.shape[0]
    vision["deepstack_visual_indexes"] = [index for index, has in enumerate(flags) if has]
    return {"vision_config": vision}


def pixtral(own: Config, tensors: Tensors) -> dict[str, object]:
    """Files of Pixtral 12B have no patch merger."""
    active = {"use_gelu": "gelu", "use_silu": "silu"}.get(name := said_activation(own))
    if active is None or "mm.patch_merger.weight" not in tensors:
        problem = f"says the activation '{name}'" if active is None else "has no tensor 'mm.patch_merger.weight'"
        raise UnsupportedModel(
            f"the vision encoder {problem}; expected use_gelu or use_silu, and a patch merger, as of Mistral 3."
        )
    epsilon = own.number("vision.attention.layer_norm_epsilon", 1e-5, above=0)
    return {
        "vision_config": {**_sizes(own, tensors), "hidden_act": active, "rms_norm_eps": epsilon,
                          "rope_theta": own.number(BASE, 10_000.0, above=1)},
        "spatial_merge_size": own.integer(MERGE),
        "multimodal_projector_bias": "mm.1.bias" in tensors,
    }  # fmt: skip


def lfm2(own: Config, tensors: Tensors) -> dict[str, object]:
    """The projector's size is the tensor's, which no file says."""
    up, positions = tensors.get("mm.1.weight"), tensors.get(_POSITIONS)
    return {
        "vision_config": {
            **_siglip(own, tensors),
            "model_type": "siglip2_vision_model",
            **({} if positions is None else {"num_patches": positions.shape[0]}),
        },
        "downsample_factor": own.integer(SCALE, 2),
        **({} if up is None else {"projector_hidden_size": up.shape[0]}),
        "projector_bias": "mm.1.bias" in tensors,
        "projector_use_layernorm": "mm.input_norm.weight" in tensors,
    }


def gemma4(own: Config, tensors: Tensors) -> dict[str, object]:
    """Files say neither use_gelu nor use_silu; all checkpoints have the tanh approximation of GELU."""
    if (active := said_activation(own)) not in ("", "use_gelu"):
        raise UnsupportedModel(f"the vision encoder says the activation '{active}'; expected use_gelu, or none.")
    vision, positions = _sizes(own, tensors), tensors.get(_POSITIONS)
    heads = own.integer("vision.attention.head_count")
    return {
        "vision_config": {
            **vision,
            "num_key_value_heads": heads,
            "head_dim": own.integer("vision.embedding_length") // heads,
            "pooling_kernel_size": own.integer(SCALE, 3),
            "rms_norm_eps": own.number("vision.attention.layer_norm_epsilon", 1e-6, above=0),
            "hidden_activation": "gelu_pytorch_tanh",
            "use_clipped_linears": "v.blk.0.attn_q.input_max" in tensors,
            "standardize": "v.std_bias" in tensors,
            **({} if positions is None else {"position_embedding_size": positions.shape[-2]}),
        }
    }
