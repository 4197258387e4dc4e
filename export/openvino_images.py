"""What openvino-genai's VLMPipeline takes to run a model with images: models over the weights file, and settings.

Source: vlm_config.cpp, processor_config.cpp and the classes of visual_language of openvino-genai (2026.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.graphs import Model
from embedllm.export.openvino.genai_models import genai_models
from embedllm.export.writing.image_tokens import check_image_tokens
from embedllm.files.atomic import write_json
from embedllm.files.json_object import read_json_object
from embedllm.images.any_size import AnySizeProcessor
from embedllm.images.aspect_ratio import TokenBudget
from embedllm.images.dynamic_size import PixelRange
from embedllm.images.processors import FixedSizeProcessor, Processor, open_processor
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision

_LIBRARY, _OPTION = "openvino-genai", "--openvino-images"
_CONFIG, _SETTINGS, _PROCESSOR = "config.json", "preprocessor_config.json", "processor_config.json"
_ROPE_BASE, _IMAGES_OF_A_PATCH = 10_000, 2  # of Qwen's encoders, and in time; it knows no other
_MOST = 255  # of a channel; its settings are of values from 0 to 1
_RESCALING = {"do_rescale": True, "rescale_factor": 1 / _MOST}  # what it does, whatever settings say
_GEMMA_3, _GEMMA_4 = "gemma3", "gemma4"
_QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
# "model_type" there, by that of ours. The experts of a mixture are in the graph, of which it sees nothing
_KINDS = {**{name: name for name in (_GEMMA_3, _GEMMA_4, *_QWEN)}, "qwen3_vl_moe": "qwen3_vl"}
_IMAGE_TOKENS = {
    _GEMMA_3: ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    _GEMMA_4: ("<|image|>", "<|image>", "<image|>", "<|video|>"),
    **dict.fromkeys(_QWEN, ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")),
}  # texts of tokens, the first of them that of a row of features


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenvinoImages:
    """What follows from a checkpoint's small files. files: contents of JSON files, by their names."""

    files: Mapping[str, object]

    def write(self, folder: Path, model: Model) -> None:
        """folder: has the graphs of the model already."""
        for file, data in genai_models(model.decoder, model.layout, model.packing).items():
            (folder / file).write_bytes(data)
        for file, content in self.files.items():
            write_json(folder / file, content)


def prepare_openvino_images(folder: Path, decoder: Decoder, config: Mapping[str, object]) -> OpenvinoImages:
    """folder: with the tokenizer and the settings of the image processor. config: of the model.

    Raises ExportError for a model, a tokenizer or an image processor that openvino-genai does not take, PackageError
    for files that cannot be read.
    """
    vision, kind = decoder.vision, _KINDS.get(decoder.model_type)
    if vision is None or kind is None:
        reason = "takes no images" if vision is None else "has no type there, or other inputs than our graphs"
        raise ExportError(
            f"'{decoder.model_type}' cannot read images in {_LIBRARY}: it {reason}. Those that can: "
            f"{', '.join(_KINDS)}. Export without {_OPTION}."
        )
    if decoder.model_type in _QWEN:
        _check_encoder(folder, decoder.model_type, vision)
    check_image_tokens(folder, _IMAGE_TOKENS[decoder.model_type], vision.image_token, library=_LIBRARY, option=_OPTION)
    settings = _make_settings(folder, decoder, open_processor(folder, vision, {}))
    return OpenvinoImages(files={_CONFIG: _make_config(config, kind, decoder), **settings})


def _check_encoder(folder: Path, model_type: str, vision: object) -> None:
    """Its code has numbers of its own for encoders of Qwen's."""
    assert isinstance(vision, DynamicVision)
    if model_type.startswith("qwen3_vl") and not vision.deepstack:
        raise ExportError(
            f"the vision encoder of '{folder.name}' has no DeepStack, which {_LIBRARY} gives every '{model_type}'. "
            f"Export without {_OPTION}."
        )
    if vision.rope_base != _ROPE_BASE or vision.temporal_patch_size != _IMAGES_OF_A_PATCH:
        raise ExportError(
            f"the vision encoder of '{folder.name}' has a RoPE base of {vision.rope_base:g} and patches of "
            f"{vision.temporal_patch_size} images; {_LIBRARY} knows {_ROPE_BASE} and {_IMAGES_OF_A_PATCH}. Export "
            f"without {_OPTION}."
        )


def _make_config(config: Mapping[str, object], kind: str, decoder: Decoder) -> dict[str, object]:
    """config.json, with all that it reads: what a checkpoint leaves out may have another default there."""
    text, of_vision = (dict(_section(config, f"{name}_config")) for name in ("text", "vision"))
    vision = decoder.vision
    if isinstance(vision, DynamicVision):
        of_vision["patch_size"] = vision.patch_size
        if vision.window:
            of_vision["window_size"] = vision.window * vision.factor
        if vision.positions is not None and not vision.positions_by_axis:
            of_vision["num_position_embeddings"] = vision.positions.rows
            of_vision["deepstack_visual_indexes"] = [each.layer for each in vision.deepstack]
    if kind == _GEMMA_4:
        inputs = decoder.per_layer_embedding
        text["hidden_size_per_layer_input"] = 0 if inputs is None else inputs.size
        text["use_bidirectional_attention"] = "vision" if decoder.images_are_bidirectional else None
    return {**config, "model_type": kind, **({"text_config": text} if text else {}), "vision_config": of_vision}


def _make_settings(folder: Path, decoder: Decoder, processor: Processor) -> dict[str, dict[str, object]]:
    """The folder's settings of the image processor, with all that it reads, in the file where it looks for them."""
    both, image = (read_json_object(folder / name) for name in (_PROCESSOR, _SETTINGS))
    inner = _section(both, "image_processor")
    settings = {**inner, **image}
    values = {key: value for key, value in settings.items() if value is not None}
    missing = {name: value for name, value in _values(decoder, processor).items() if not _has(values, name, value)}
    if inner and "video_processor" in both:
        return {_PROCESSOR: {**both, "image_processor": {**values, **missing}}}
    return {_SETTINGS: {**values, **missing}}


def _values(decoder: Decoder, processor: Processor) -> dict[str, object]:
    """All that openvino-genai reads of an image processor."""
    assert isinstance(processor, FixedSizeProcessor | AnySizeProcessor)  # of all kinds that it runs
    vision, std = decoder.vision, processor.pixels.std
    if isinstance(processor, FixedSizeProcessor):
        settings: dict[str, object] = {"size": {"height": processor.tile, "width": processor.tile}}
    else:
        assert isinstance(vision, DynamicVision)
        rule = processor.size_rule
        settings = {"patch_size": vision.patch_size}
        if isinstance(rule, TokenBudget):
            settings |= {"pooling_kernel_size": vision.merge_size, "max_soft_tokens": rule.most_tokens}
        else:
            assert isinstance(rule, PixelRange)
            settings |= {"min_pixels": rule.min_pixels, "max_pixels": rule.max_pixels, "merge_size": vision.merge_size,
                         "temporal_patch_size": vision.temporal_patch_size}  # fmt: skip
    mean = processor.pixels.mean
    if decoder.model_type == _GEMMA_4:  # its model centres values itself: export/openvino/padded_patches.py
        mean, std = tuple(m - s for m, s in zip(mean, std, strict=True)), tuple(2 * one for one in std)
    settings |= {"image_mean": [one / _MOST for one in mean], "image_std": [one / _MOST for one in std]}
    return {**settings, **_RESCALING}


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _has(settings: Mapping[str, object], name: str, expected: object) -> bool:
    """Whether settings have the value already, but for rounding: then it stays as it is."""
    current = settings.get(name, _RESCALING.get(name))  # left out, it is rescaled so
    if isinstance(current, Sequence) and isinstance(expected, Sequence) and len(current) == len(expected):
        pairs = zip(current, expected, strict=True)
        return all(isinstance(one, float | int) and math.isclose(one, value, abs_tol=1e-9) for one, value in pairs)
    return current == expected
