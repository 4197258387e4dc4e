"""What openvino-genai's LLMPipeline needs besides the model: its tokenizer as models, and its name for the weights."""

from __future__ import annotations

from pathlib import Path

from embedllm.errors import ExportError
from embedllm.files.no_telemetry import without_telemetry
from embedllm.package.package import WEIGHTS

LINK = "openvino_model.bin"  # where it looks for the weights of openvino_model.xml


def check_installed() -> None:
    """Raises ExportError when a package that this module uses is missing."""
    try:
        with without_telemetry():
            import openvino_tokenizers  # noqa: F401
            import transformers  # noqa: F401
    except ImportError as error:
        raise ExportError(
            f"the tokenizer for openvino-genai cannot be made ({error}). "
            'Install what it takes: pip install "embedllm[openvino]" openvino-tokenizers transformers'
        ) from error


def write_tokenizer(source: Path, folder: Path) -> None:
    """Writes openvino_tokenizer and openvino_detokenizer (xml, bin), made from the tokenizer of a Hugging Face folder.

    Raises ExportError when openvino-tokenizers cannot convert it.
    """
    with without_telemetry():
        import openvino
        from openvino_tokenizers import convert_tokenizer
        from transformers import AutoTokenizer
    try:
        # local_files_only: transformers asks the hub about some tokenizers, though they lie here
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
        made = convert_tokenizer(tokenizer, with_detokenizer=True)
    except Exception as error:  # of transformers, its tokenizer classes or openvino-tokenizers, each with its own
        said = " ".join(str(error).split()) or type(error).__name__
        raise ExportError(
            f"openvino-tokenizers cannot convert the tokenizer of '{source}': {said} "
            "Export without --openvino-tokenizer; only openvino-genai needs it."
        ) from error
    assert isinstance(made, tuple)  # with_detokenizer
    for model, name in zip(made, ("openvino_tokenizer.xml", "openvino_detokenizer.xml"), strict=True):
        openvino.save_model(model, folder / name)


def link_weights(folder: Path) -> None:
    """Gives the weights file, which is made if it is not there yet, its second name: a hard link, else a relative one.

    Raises ExportError where the file system has neither.
    """
    link = folder / LINK
    (folder / WEIGHTS).touch()
    try:
        link.hardlink_to(folder / WEIGHTS)
    except OSError:
        try:
            link.symlink_to(WEIGHTS)
        except OSError as error:
            raise ExportError(
                f"the disk of '{folder.parent}' takes no links ({error.strerror or error}), but openvino-genai needs "
                f"'{LINK}' as a second name of '{WEIGHTS}'. Export to another disk, or without --openvino-tokenizer."
            ) from error
