"""What onnxruntime-genai takes to run a model with images: graphs over the weights file, and their configuration.

It splits a model at the embeddings, where our graphs have features of images as inputs of the decoder. So it has the
embedding and a decoder of its own, and an encoder where that of `cpu` has other inputs: a few kilobytes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from embedllm.export.graphs import Model, onnx_bytes
from embedllm.export.writing.genai_config import FILE, genai_images_config
from embedllm.export.writing.genai_kinds import GenaiKind, genai_kind, token_ids
from embedllm.export.writing.genai_processor import processor_config
from embedllm.files.atomic import write_json
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import GENAI_DECODER, GENAI_EMBEDDING

PROCESSOR = "genai_processor.json"  # "processor_config.json", its own name for it, is that of transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class GenaiImages:
    """What follows from a checkpoint's small files."""

    kind: GenaiKind
    ids: Mapping[str, int]  # of special tokens, by the keys of the configuration
    processor: Mapping[str, object]  # the contents of PROCESSOR

    def write(self, folder: Path, model: Model, tokens: Mapping[str, object]) -> None:
        """Writes the graphs, the steps of the image processor and, over that of text, genai_config.json.

        folder: has the graphs of the model already. tokens: as genai_config() has them.
        """
        for variant in (self.kind.vision, GENAI_EMBEDDING, GENAI_DECODER):
            if not (folder / variant.file).exists():
                (folder / variant.file).write_bytes(onnx_bytes(variant, model))
        write_json(folder / PROCESSOR, self.processor)
        config = genai_images_config(model.decoder, tokens, self.kind, self.ids, PROCESSOR)
        write_json(folder / FILE, config)


def prepare_genai_images(folder: Path, decoder: Decoder) -> GenaiImages:
    """folder: with the tokenizer and the settings of the image processor.

    Raises ExportError for a model, a tokenizer or an image processor that onnxruntime-genai does not take, PackageError
    for files that cannot be read.
    """
    kind = genai_kind(decoder)
    assert decoder.vision is not None  # as it is some kind
    ids = token_ids(kind, folder, decoder.vision.image_token)
    return GenaiImages(kind=kind, ids=ids, processor=processor_config(folder, decoder.vision, kind))
