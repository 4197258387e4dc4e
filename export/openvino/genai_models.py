"""The models that openvino-genai's VLMPipeline splits one that takes images into, over the same weights file.

It looks for the weights of each under the model's name with the ending .bin: links, as links.py makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from embedllm.export.layout import Layout
from embedllm.export.openvino.ir import Ir
from embedllm.export.openvino.language_model import (
    write_embedding,
    write_language_model,
    write_per_layer_embedding,
)
from embedllm.export.openvino.padded_patches import write_padded_encoder
from embedllm.export.openvino.patch_models import write_layers, write_patches, write_positions
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.packing import Packing


@dataclass(frozen=True, slots=True)
class _Model:
    name: str  # of the file, between "openvino_" and "_model.xml"
    write: Callable[[Ir, Decoder, Mapping[str, Packing]], None]

    @property
    def file(self) -> str:
        return f"openvino_{self.name}_model.xml"

    @property
    def constants(self) -> str:
        """The entry of its small constants in the weights file."""
        return f"openvino.{self.name}.constants"


_LANGUAGE = (_Model("text_embeddings", write_embedding), _Model("language", write_language_model))
_PER_LAYER = _Model("text_embeddings_per_layer", write_per_layer_embedding)
_VISION = (_Model("vision_embeddings", write_patches), _Model("vision_embeddings_merger", write_layers))
_POSITIONS = _Model("vision_embeddings_pos", write_positions)
_PADDED = _Model("vision_embeddings", write_padded_encoder)
LANGUAGE_FILE = _LANGUAGE[1].file  # which every such folder has
# of models whose images have one size "vision_embeddings" is the encoder of embedllm
FILES = {*(model.file for model in (*_LANGUAGE, _PER_LAYER, *_VISION, _POSITIONS))}


def genai_models(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing]) -> dict[str, bytes]:
    """Those of a model, as texts of IR files, by the name of the file. packing: by the name of the matrix."""
    files: dict[str, bytes] = {}
    for model in _models(decoder):
        ir = Ir(layout, model.constants)
        model.write(ir, decoder, packing)
        files[model.file] = ir.xml(f"{decoder.model_type}.{model.name}").encode()
    return files


def genai_constants(decoder: Decoder, packing: Mapping[str, Packing]) -> dict[str, bytes]:
    """The small constants that they need, by their entries in the weights file."""
    pools: dict[str, bytes] = {}
    for model in _models(decoder):
        ir = Ir(None)
        model.write(ir, decoder, packing)
        pools[model.constants] = ir.pool
    return {name: pool for name, pool in pools.items() if pool}


def _models(decoder: Decoder) -> tuple[_Model, ...]:
    vision, models = decoder.vision, [*_LANGUAGE]
    if decoder.per_layer_embedding is not None:
        models.append(_PER_LAYER)
    if isinstance(vision, DynamicVision):
        models += [_PADDED] if vision.positions_by_axis else _VISION
        if vision.positions is not None and not vision.positions_by_axis:
            models.append(_POSITIONS)
    return tuple(models)
