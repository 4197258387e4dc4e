"""What openvino-genai needs besides the model: its tokenizer as models."""

from __future__ import annotations

from pathlib import Path

from embedllm.errors import ExportError
from embedllm.files.no_telemetry import without_telemetry

TOKENIZER_FILE = "openvino_tokenizer.xml"


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
        models = convert_tokenizer(tokenizer, with_detokenizer=True)
    except Exception as error:  # of transformers, its tokenizer classes or openvino-tokenizers, each with its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ExportError(
            f"openvino-tokenizers cannot convert the tokenizer of '{source}': {reason} "
            "Export without --openvino-tokenizer; only openvino-genai needs it."
        ) from error
    assert isinstance(models, tuple)  # with_detokenizer
    for model, name in zip(models, (TOKENIZER_FILE, "openvino_detokenizer.xml"), strict=True):
        openvino.save_model(model, folder / name)
