"""The vision encoders that are read from GGUF (mmproj files): what they say, as their family's own files say it.

Source: MmprojModel and its families in conversion/*.py of llama.cpp, and tools/mtmd/clip.cpp for what it takes for
granted. What no file says is the family's rule in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.config import Config

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import Placed

    Tensors: TypeAlias = Mapping[str, Placed]

UP, DOWN = "v.blk.{}.ffn_up", "v.blk.{}.ffn_down"
_POSITIONS = "v.position_embd.weight"
_SCALE, _MERGE = "vision.projector.scale_factor", "vision.spatial_merge_size"
_WINDOWS, _WINDOW, _DEEPSTACK = "vision.n_wa_pattern", "vision.window_size", "vision.is_deepstack_layers"
_LONGEST, _LEAST, _MOST = "vision.preproc_image_size", "vision.image_min_pixels", "vision.image_max_pixels"
_BASE = "rope.freq_base"
_TEMPORAL = 2  # of a patch, in all of Qwen's
_ACTIVATIONS = ("use_gelu", "use_silu")  # with neither it is QuickGELU
# What every encoder takes, behind "clip."
_COMMON = (
    "has_vision_encoder", "projector_type", "vision.projector_type", "vision.image_size", "vision.patch_size",
    "vision.embedding_length", "vision.feed_forward_length", "vision.projection_dim", "vision.block_count",
    "vision.attention.head_count", "vision.attention.layer_norm_epsilon", "vision.image_mean", "vision.image_std",
    *_ACTIVATIONS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """What clip.projector_type stands for."""

    families: Mapping[str, str]  # model_type of the whole, by general.architecture of the text model
    placeholder: str  # the token that stands for a row of features
    activation: str | None  # which of _ACTIVATIONS is said, or ""; None: `config` reads it
    config: Callable[[Config, Tensors], dict[str, object]]  # of clip.*: all of config.json but the text model
    processor: Callable[[Config], dict[str, object]]  # of clip.*: preprocessor_config.json
    keys: tuple[str, ...] = ()  # that it takes besides the common ones; any other key is refused

    def check(self, own: Config, metadata: Mapping[str, object], where: str) -> None:
        """Raises UnsupportedModel for what is said and not known here. metadata: behind "clip."."""
        known = {*_COMMON, *self.keys}
        if unknown := [key for key, value in metadata.items() if key not in known and value not in (False, 0)]:
            raise UnsupportedModel(
                f"'{where}' says 'clip.{unknown[0]}', which is not known here for such vision encoders and could "
                "change what they compute. Try the checkpoint that it was made from."
            )
        active = _said_activation(own)
        if self.activation is not None and active != self.activation:
            raise UnsupportedModel(
                f"'{where}' says the activation '{active or 'neither use_gelu nor use_silu'}'; its family has "
                f"'{self.activation or 'neither use_gelu nor use_silu'}'."
            )


def _said_activation(own: Config) -> str:
    return "".join(key for key in _ACTIVATIONS if own.flag(key, False))


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
        found = "no tensor" if up is None else f"{list(up.shape)} as the tensor"
        raise ExportError(f"the vision encoder has {found} '{UP.format(0)}.weight'; expected a matrix of {hidden}.")
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


def _idefics3(own: Config, tensors: Tensors) -> dict[str, object]:
    return {"vision_config": _siglip(own, tensors), "scale_factor": own.integer(_SCALE, 2)}


def _gemma3(own: Config, tensors: Tensors) -> dict[str, object]:
    vision = _siglip(own, tensors)
    side = own.integer("vision.image_size") // own.integer("vision.patch_size") // own.integer(_SCALE, 4)
    return {"vision_config": vision, "mm_tokens_per_image": side * side}


def _qwen(own: Config, tensors: Tensors) -> dict[str, object]:
    """Without the epsilon of its norms: transformers has a fixed one, files the text model's."""
    return {
        **{_QWEN_KEYS.get(key, key): value for key, value in _sizes(own, tensors).items()},
        "out_hidden_size": own.integer("vision.projection_dim"),
        "spatial_merge_size": own.integer(_MERGE, 2),
        "temporal_patch_size": _TEMPORAL,
    }


_QWEN_KEYS = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}


def _qwen2(own: Config, tensors: Tensors) -> dict[str, object]:
    found = _qwen(own, tensors)
    found |= {"embed_dim": found.pop("hidden_size"), "hidden_size": found.pop("out_hidden_size")}
    return {"vision_config": found}


def _qwen2_5(own: Config, tensors: Tensors) -> dict[str, object]:
    """Every n-th layer attends to the whole image, the others have windows."""
    every, found = own.integer(_WINDOWS), _qwen(own, tensors)
    full = [index for index in range(own.integer("vision.block_count")) if (index + 1) % every == 0]
    window = own.integer(_WINDOW, 112)
    return {"vision_config": {**found, "window_size": window, "fullatt_block_indexes": full}}


def _qwen3(own: Config, tensors: Tensors) -> dict[str, object]:
    found = _qwen(own, tensors)
    flags = own.value(_DEEPSTACK) or []
    if not isinstance(flags, list):
        raise ExportError(f"'clip.{_DEEPSTACK}' is {flags!r}; expected a truth for each layer.")
    if (positions := tensors.get(_POSITIONS)) is not None:
        found["num_position_embeddings"] = positions.shape[0]
    found["deepstack_visual_indexes"] = [index for index, has in enumerate(flags) if has]
    return {"vision_config": found}


def _pixtral(own: Config, tensors: Tensors) -> dict[str, object]:
    """Files of Pixtral 12B have no patch merger."""
    active = {"use_gelu": "gelu", "use_silu": "silu"}.get(said := _said_activation(own))
    if active is None or "mm.patch_merger.weight" not in tensors:
        found = f"says the activation '{said}'" if active is None else "has no tensor 'mm.patch_merger.weight'"
        raise UnsupportedModel(
            f"the vision encoder {found}; expected use_gelu or use_silu, and a patch merger, as of Mistral 3."
        )
    epsilon = own.number("vision.attention.layer_norm_epsilon", 1e-5, above=0)
    return {
        "vision_config": {**_sizes(own, tensors), "hidden_act": active, "rms_norm_eps": epsilon,
                          "rope_theta": own.number(_BASE, 10_000.0, above=1)},
        "spatial_merge_size": own.integer(_MERGE),
        "multimodal_projector_bias": "mm.1.bias" in tensors,
    }  # fmt: skip


def _pixels(own: Config, kind: str, **more: object) -> dict[str, object]:
    mean, std = (own.numbers(f"vision.image_{name}", 3) for name in ("mean", "std"))
    return {"image_processor_type": kind, "image_mean": mean, "image_std": std, **more}


def _tiles(own: Config) -> dict[str, object]:
    """Files that say nothing of the first resize have four tiles a side at most, as transformers has by default."""
    tile = own.integer("vision.image_size")
    return _pixels(own, "Idefics3ImageProcessor", size={"longest_edge": own.integer(_LONGEST, 4 * tile)},
                   max_image_size={"longest_edge": tile})  # fmt: skip


def _square(own: Config) -> dict[str, object]:
    side = own.integer("vision.image_size")
    return _pixels(own, "Gemma3ImageProcessor", size={"height": side, "width": side})


def _any_size(least: int, most: int) -> Callable[[Config], dict[str, object]]:
    """least, most: pixels of what files say nothing of, as in the published checkpoints."""
    return lambda own: _pixels(
        own, "Qwen2VLImageProcessor", patch_size=own.integer("vision.patch_size"),
        merge_size=own.integer(_MERGE, 2), temporal_patch_size=_TEMPORAL,
        min_pixels=own.integer(_LEAST, least), max_pixels=own.integer(_MOST, most),
    )  # fmt: skip


def _fitting(own: Config) -> dict[str, object]:
    """Images that fit into the square that files call the size of an image keep theirs."""
    return _pixels(own, "PixtralImageProcessor", patch_size=own.integer("vision.patch_size"),
                   spatial_merge_size=own.integer(_MERGE),
                   size={"longest_edge": own.integer("vision.image_size")})  # fmt: skip


_FIRST_SIZES = _any_size(56 * 56, 28 * 28 * 16_384)
_LIMITS = (_MERGE, _LEAST, _MOST)
_PAD = "<|image_pad|>"
_QWEN3 = {"qwen3vl": "qwen3_vl", "qwen3vlmoe": "qwen3_vl_moe", "qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe"}
PROJECTORS: Mapping[str, Projector] = {
    "idefics3": Projector(families={"llama": "idefics3"}, placeholder="<image>", activation="use_gelu",
                          config=_idefics3, processor=_tiles, keys=(_SCALE, _LONGEST)),
    "gemma3": Projector(families={"gemma3": "gemma3"}, placeholder="<image_soft_token>", activation="use_gelu",
                        config=_gemma3, processor=_square, keys=(_SCALE,)),
    "qwen2vl_merger": Projector(families={"qwen2vl": "qwen2_vl"}, placeholder=_PAD, activation="", config=_qwen2,
                                processor=_FIRST_SIZES, keys=_LIMITS),
    "qwen2.5vl_merger": Projector(families={"qwen2vl": "qwen2_5_vl"}, placeholder=_PAD, activation="use_silu",
                                  config=_qwen2_5, processor=_FIRST_SIZES, keys=(*_LIMITS, _WINDOWS, _WINDOW)),
    "qwen3vl_merger": Projector(families=_QWEN3, placeholder=_PAD, activation="use_gelu", config=_qwen3,
                                processor=_any_size(64 * 32 * 32, 16_384 * 32 * 32), keys=(*_LIMITS, _DEEPSTACK)),
    "pixtral": Projector(families={"mistral3": "mistral3", "llama": "mistral3"}, placeholder="[IMG]", activation=None,
                         config=_pixtral, processor=_fitting, keys=(_MERGE, _BASE)),
}  # fmt: skip
