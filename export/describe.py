"""What a checkpoint is: a decoder, or an embedding or reranker model, and the options that the latter cannot have."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import encoders
from embedllm.export.architectures import describe, families
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.checkpoints.sentence_transformers import read_sentence_folder
from embedllm.export.gguf.source import GgufSource
from embedllm.export.gguf.tensors import GgufTensors
from embedllm.export.open_source import Checkpoint
from embedllm.export.recipe import Recipe, incompatible_option
from embedllm.package.architecture.decoder import Decoder


def describe_checkpoint(
    reader: Checkpoint, *, context: int | None, task: str | None
) -> tuple[Decoder, HuggingFaceSource | GgufTensors]:
    """The model of a checkpoint, and what its tensors are read from, until the checkpoint is closed.

    task: one of encoders.TASKS; None: what the checkpoint is for by the class that config.json names, and by the
    modules.json of sentence-transformers. Raises UnsupportedModel, ExportError, ValueError for a task there is not.
    """
    if task is not None and task not in encoders.TASKS:
        raise ValueError(f"task is {task!r}; expected None or one of: {', '.join(encoders.TASKS)}.")
    config = reader.config
    if isinstance(reader, GgufSource):
        return reader.tensors(_of_gguf(reader, context, task or reader.task))
    folder = None if task == "chat" else read_sentence_folder(reader.folder)
    chosen_task = task or encoders.task_of(config, folder)
    if chosen_task == "chat":
        return _described(config, context), reader
    if folder is not None and chosen_task == "embed":
        reader.folders = folder.folders
    return encoders.describe_encoder(config, folder, chosen_task, context), reader


def describe_untied(reader: HuggingFaceSource, context: int | None) -> Decoder:
    """A model that generates text, with a head of its own whatever its config.json says."""
    return _described({**reader.config, "tie_word_embeddings": False}, context)


def _of_gguf(reader: GgufSource, context: int | None, task: str) -> Decoder:
    if task == "chat":
        return _described(reader.config, context)
    if task != reader.task:
        raise ExportError(
            f"'{reader.location.name}' is a model to {reader.task} by what the file says and holds, and has nothing to "
            f"{task} with. Leave the task out, or export the checkpoint that it was made from."
        )
    return encoders.describe_encoder(reader.config, reader.sentences, task, context)


def _described(config: Mapping[str, object], context: int | None) -> Decoder:
    """The description of a model. The error for a family that has none says what else can be tried."""
    try:
        return describe(Config(config), context)
    except UnsupportedModel as error:
        if error.model_type in families():
            raise
        raise UnsupportedModel(f"{error} {offer(error.model_type)}", model_type=error.model_type) from None


def check_encoder(decoder: Decoder, recipe: Recipe, options: Mapping[str, object]) -> None:
    """Raises ExportError for options that an embedding or reranker model cannot have.

    options: of convert(), by their names; None and False: not given.
    """
    if decoder.encoder is None:
        return
    if option := incompatible_option(recipe, options):
        raise ExportError(
            f"'{decoder.model_type}' is exported as an embedding or reranker model, for which there is no {option}. "
            "Leave it out."
        )


INSTALL = "pip install 'embedllm[optimum]'"
DISTRIBUTION = "optimum-onnx"


def offer(model_type: str) -> str:
    """What an error says of this way for a model_type that is not described."""
    how = f"embedllm export SOURCE OUT --exporter optimum (needs: {INSTALL})"
    try:
        metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f"optimum may know '{model_type}': {how}."
    return f"optimum is installed and may know '{model_type}': embedllm export SOURCE OUT --exporter optimum."
