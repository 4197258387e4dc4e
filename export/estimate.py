"""What an export will come to, from the small files of a checkpoint alone: before its weights are downloaded."""

from __future__ import annotations

import dataclasses

from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.describe import describe_checkpoint
from embedllm.export.graphs import variants
from embedllm.export.recipe import Recipe
from embedllm.export.writing.metadata import facts_of, special_tokens, texts_of
from embedllm.export.writing.plan import plan
from embedllm.hub.location import Location
from embedllm.package.architecture_json import to_json
from embedllm.package.package import WEIGHTS, Package


def expected_package(location: Location, recipe: Recipe) -> Package:
    """The package as its manifest will describe it, without hashes: for estimates of what it needs.

    Of a source with quantized matrices it is as for floats: its weights say how they are packed.
    Raises ExportError, UnsupportedModel for what convert() would refuse before it reads weights.
    """
    reader = HuggingFaceSource(location)
    decoder, _ = describe_checkpoint(reader, context=recipe.context, task=None)
    texts_of(location.folder)  # refuses a model without a tokenizer
    tokens = special_tokens(reader, decoder.vocabulary)
    decided = plan(decoder, recipe.of_floats)
    manifest = {
        **facts_of(location, recipe, tokens, location.name),
        "context": decoder.context,
        "graphs": [graph.as_json() for graph in variants(decoder, decided.packing)],
        "quantization": {name: dataclasses.asdict(packing) for name, packing in decided.packing.items()},
        "architecture": to_json(decoder),
        "files": {WEIGHTS: {"bytes": decided.layout.size, "sha256": ""}},
    }
    return Package(location.folder, manifest)
