"""The vision encoders that are read from GGUF (mmproj files), by their projectors, and their image processors.

Source: as of projector_config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.export.gguf import projector_config as configs
from embedllm.export.gguf.projector_config import (
    ACTIVATIONS,
    BASE,
    DEEPSTACK,
    MERGE,
    SCALE,
    TEMPORAL,
    WINDOW,
    WINDOWS,
    said_activation,
)

if TYPE_CHECKING:
    from embedllm.export.gguf.projector_config import Tensors

_LONGEST, _LEAST, _MOST = "vision.preproc_image_size", "vision.image_min_pixels", "vision.image_max_pixels"
# What every encoder takes, behind "clip."
_COMMON = (
    "has_vision_encoder", "projector_type", "vision.projector_type", "vision.image_size", "vision.patch_size",
    "vision.embedding_length", "vision.feed_forward_length", "vision.projection_dim", "vision.block_count",
    "vision.attention.head_count", "vision.attention.layer_norm_epsilon", "vision.image_mean", "vision.image_std",
    *ACTIVATIONS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """What clip.projector_type stands for."""

    families: Mapping[str, str]  # model_type of the whole, by general.architecture of the text model
    placeholder: str  # the token that stands for a row of features
    activation: str | None  # which of ACTIVATIONS is said, or ""; None: `config` reads it
    config: Callable[[Config, Tensors], dict[str, object]]  # of clip.*: all of config.json but the text model
    processor: Callable[[Config], dict[str, object]]  # of clip.*: preprocessor_config.json
    keys: tuple[str, ...] = ()  # that it takes besides the common ones; any other key is refused
    unread_keys: tuple[str, ...] = ()  # how those begin that are of another encoder in the file
    unread_tensors: tuple[str, ...] = ()  # and its tensors

    def check(self, own: Config, metadata: Mapping[str, object], where: str) -> None:
        """Raises UnsupportedModel for what is said and not known here. metadata: behind "clip."."""
        known_keys = {*_COMMON, *self.keys}
        left = {key: value for key, value in metadata.items() if not key.startswith(self.unread_keys)}
        if unknown := [key for key, value in left.items() if key not in known_keys and value not in (False, 0)]:
            raise UnsupportedModel(
                f"'{where}' says 'clip.{unknown[0]}', which is not known here for such vision encoders and could "
                "change what they compute. Try the checkpoint that it was made from."
            )
        active = said_activation(own)
        if self.activation is not None and active != self.activation:
            raise UnsupportedModel(
                f"'{where}' says the activation '{active or 'neither use_gelu nor use_silu'}'; its family has "
                f"'{self.activation or 'neither use_gelu nor use_silu'}'."
            )


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
        merge_size=own.integer(MERGE, 2), temporal_patch_size=TEMPORAL,
        min_pixels=own.integer(_LEAST, least), max_pixels=own.integer(_MOST, most),
    )  # fmt: skip


def _fitting(own: Config) -> dict[str, object]:
    """Images that fit into the square that files call the size of an image keep theirs."""
    return _pixels(own, "PixtralImageProcessor", patch_size=own.integer("vision.patch_size"),
                   spatial_merge_size=own.integer(MERGE),
                   size={"longest_edge": own.integer("vision.image_size")})  # fmt: skip


def _lfm2(own: Config) -> dict[str, object]:
    """Numbers of tokens and of tiles are in no file: those of all published checkpoints, which llama.cpp has, too."""
    return _pixels(own, "Lfm2VlImageProcessor", encoder_patch_size=own.integer("vision.patch_size"),
                   downsample_factor=own.integer(SCALE, 2))  # fmt: skip


def _gemma4(own: Config) -> dict[str, object]:
    """Nor is the budget of tokens."""
    return _pixels(own, "Gemma4ImageProcessor", patch_size=own.integer("vision.patch_size"),
                   pooling_kernel_size=own.integer(SCALE, 3), do_normalize=True)  # fmt: skip


_FIRST_SIZES = _any_size(56 * 56, 28 * 28 * 16_384)
_LIMITS = (MERGE, _LEAST, _MOST)
_PAD = "<|image_pad|>"
_QWEN3 = {"qwen3vl": "qwen3_vl", "qwen3vlmoe": "qwen3_vl_moe", "qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe"}
PROJECTORS: Mapping[str, Projector] = {
    "idefics3": Projector(families={"llama": "idefics3"}, placeholder="<image>", activation="use_gelu",
                          config=configs.idefics3, processor=_tiles, keys=(SCALE, _LONGEST)),
    "gemma3": Projector(families={"gemma3": "gemma3"}, placeholder="<image_soft_token>", activation="use_gelu",
                        config=configs.gemma3, processor=_square, keys=(SCALE,)),
    "qwen2vl_merger": Projector(families={"qwen2vl": "qwen2_vl"}, placeholder=_PAD, activation="", config=configs.qwen2,
                                processor=_FIRST_SIZES, keys=_LIMITS),
    "qwen2.5vl_merger": Projector(families={"qwen2vl": "qwen2_5_vl"}, placeholder=_PAD, activation="use_silu",
                                  config=configs.qwen2_5, processor=_FIRST_SIZES, keys=(*_LIMITS, WINDOWS, WINDOW)),
    "qwen3vl_merger": Projector(families=_QWEN3, placeholder=_PAD, activation="use_gelu", config=configs.qwen3,
                                processor=_any_size(64 * 32 * 32, 16_384 * 32 * 32), keys=(*_LIMITS, DEEPSTACK)),
    "pixtral": Projector(families={"mistral3": "mistral3", "llama": "mistral3"}, placeholder="[IMG]", activation=None,
                         config=configs.pixtral, processor=_fitting, keys=(MERGE, BASE)),
    "lfm2": Projector(families={"lfm2": "lfm2_vl"}, placeholder="<image>", activation="use_gelu",
                      config=configs.lfm2, processor=_lfm2, keys=(SCALE,)),
    "gemma4v": Projector(families={"gemma4": "gemma4"}, placeholder="<|image|>", activation=None, config=configs.gemma4,
                         processor=_gemma4, keys=(SCALE,), unread_keys=("has_audio_encoder", "audio."),
                         unread_tensors=("a.", "mm.a.")),
}  # fmt: skip
