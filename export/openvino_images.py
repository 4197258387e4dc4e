"""What openvino-genai's VLMPipeline takes to run a model with images: models over the weights file, and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.graphs import Model
from embedllm.export.openvino.genai_models import genai_models
from embedllm.export.writing.image_marks import check_marks
from embedllm.files.atomic import write_json
from embedllm.files.json_object import read_json_object
from embedllm.images.any_size import AnySizeProcessor
from embedllm.images.dynamic_size import PixelRange
from embedllm.images.processors import FixedSizeProcessor, Processor, open_processor
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision

CONFIG, SETTINGS = "config.json", "preprocessor_config.json"
_LIBRARY, _OPTION = "openvino-genai", "--openvino-images"
_ROPE_BASE, _IMAGES_OF_A_PATCH = 10_000, 2  # of an encoder's RoPE, and in time; it knows no other
_MOST = 255  # of a channel; its settings are of values from 0 to 1
# "model_type" there, by that of ours. The experts of a mixture are in the graph, of which it sees nothing
_GEMMA, _QWEN = ("gemma3",), ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
_KINDS = {**{name: name for name in (*_GEMMA, *_QWEN)}, "qwen3_vl_moe": "qwen3_vl"}
_MARKS = {
    **dict.fromkeys(_GEMMA, ("<image_soft_token>", "<start_of_image>", "<end_of_image>")),
    **dict.fromkeys(_QWEN, ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")),
}  # texts of tokens, the first of them that of a row of features


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenvinoImages:
    """What follows from a checkpoint's small files. config, settings: the contents of the two files."""

    config: Mapping[str, object]
    settings: Mapping[str, object]

    def write(self, folder: Path, model: Model) -> None:
        """folder: has the graphs of the model already."""
        for file, data in genai_models(model.decoder, model.layout, model.packing).items():
            (folder / file).write_bytes(data)
        write_json(folder / CONFIG, self.config)
        write_json(folder / SETTINGS, self.settings)


def prepare_openvino_images(folder: Path, decoder: Decoder, config: Mapping[str, object]) -> OpenvinoImages:
    """folder: with the tokenizer and the settings of the image processor. config: of the model.

    Raises ExportError for a model, a tokenizer or an image processor that openvino-genai does not take, PackageError
    for files that cannot be read.
    """
    vision, kind = decoder.vision, _KINDS.get(decoder.model_type)
    if vision is None or kind is None:
        reason = "takes no images" if vision is None else "has other inputs there, or no type"
        raise ExportError(
            f"'{decoder.model_type}' cannot read images in {_LIBRARY}: it {reason}. Those that can: "
            f"{', '.join(_KINDS)}. Export without {_OPTION}."
        )
    if isinstance(vision, DynamicVision) and (
        vision.rope_base != _ROPE_BASE or vision.temporal_patch_size != _IMAGES_OF_A_PATCH
    ):
        raise ExportError(
            f"the vision encoder of '{folder.name}' has a RoPE base of {vision.rope_base:g} and patches of "
            f"{vision.temporal_patch_size} images; {_LIBRARY} knows {_ROPE_BASE} and {_IMAGES_OF_A_PATCH}. Export "
            f"without {_OPTION}."
        )
    check_marks(folder, _MARKS[decoder.model_type], vision.image_token, library=_LIBRARY, option=_OPTION)
    processor = open_processor(folder, vision, {})
    return OpenvinoImages(config={**config, "model_type": kind}, settings=_settings(folder, processor))


def _settings(folder: Path, processor: Processor) -> dict[str, object]:
    """The folder's settings of the image processor, with all that openvino-genai reads: it has defaults of its own."""
    inner = read_json_object(folder / "processor_config.json").get("image_processor")
    given = {**(inner if isinstance(inner, dict) else {}), **read_json_object(folder / SETTINGS)}
    known = {key: value for key, value in given.items() if value is not None}
    if isinstance(processor, FixedSizeProcessor):
        wanted: dict[str, object] = {"size": {"height": processor.tile, "width": processor.tile}}
    else:
        assert isinstance(processor, AnySizeProcessor)
        assert isinstance(processor.size_rule, PixelRange)
        wanted = {"min_pixels": processor.size_rule.min_pixels, "max_pixels": processor.size_rule.max_pixels}
    for name, values in (("image_mean", processor.pixels.mean), ("image_std", processor.pixels.std)):
        wanted[name] = [value / _MOST for value in values]
    return {**known, **{name: value for name, value in wanted.items() if not _is_said(known.get(name), value)}}


def _is_said(given: object, wanted: object) -> bool:
    """Whether a file says so already, but for rounding: then it stays as it is."""
    if isinstance(given, Sequence) and isinstance(wanted, Sequence) and len(given) == len(wanted):
        pairs = zip(given, wanted, strict=True)
        return all(isinstance(one, float | int) and math.isclose(one, value) for one, value in pairs)
    return given == wanted
