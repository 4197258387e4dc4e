"""Loads an embedding or reranker model on the first requested device that supports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.generation.defaults import read_defaults
from embedllm.loading.device_search import open_first
from embedllm.loading.load_request import search_devices, tuning_of
from embedllm.model.embeddings import Encoding
from embedllm.model.model import Model
from embedllm.package.file_state import LoadedFiles
from embedllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from embedllm.loading.options import LoadOptions
    from embedllm.package.package import Package

_ONLY_FOR_TEXT = ("kv", "adapters", "draft", "chat_template", "parse_special")


def open_encoder(package: Package, options: LoadOptions) -> Model:
    """See load(). Raises ValueError for an option that only models that generate text have."""
    from embedllm.backends.reference.encoder_engine import EncoderEngine

    if text_options := [name for name in _ONLY_FOR_TEXT if getattr(options, name) not in (None, False)]:
        raise ValueError(
            f"'{package.name}' is an embedding or reranker model and generates no text; leave out {text_options[0]}."
        )
    search = search_devices(package, options, tuning_of(package, options))
    defaults, tokenizer = read_defaults(package.folder), Tokenizer.open(package.folder)  # before the weights
    engine, memory, _ = open_first(package, search, options, runtime=lambda device: options.runtime, adapters=None)
    assert isinstance(engine, EncoderEngine)  # all that open such a package
    return Model(
        package,
        engine,
        tokenizer=tokenizer,
        defaults=defaults,
        memory=memory,
        is_direct=not options.threaded,
        loaded=None if engine.device.memory else LoadedFiles(package.mapped_files),
        encoding=Encoding(package, tokenizer, engine),
        tuned="embedding and reranker models are not tuned",
    )
