"""The small files of a model in GGUF, as a Hugging Face folder has them: tokenizer, templates, stop tokens, licence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import ExportError, PackageError
from embedllm.export.gguf.tokenizers.bpe import tokenizer_json
from embedllm.export.gguf.tokenizers.vocabulary import CONTROL, USER_DEFINED, Vocabulary, read_vocabulary
from embedllm.files.atomic import write_json
from embedllm.hub.location import MORE_TEMPLATES
from embedllm.text.end_of_turn import end_of_turn_tokens
from embedllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import GgufModel

_TEMPLATE, _WHOLE = "tokenizer.chat_template", "tokenizer.huggingface.json"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a template, which becomes that of a file
_ROLES = ("bos", "eos", "unk", "pad")
_MARKS = (CONTROL, USER_DEFINED)
_ENDS = ("eos", "eot", "eom")
# Source: gguf.Keys.General of the Python package gguf 0.19
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def write_texts(model: GgufModel, folder: Path) -> None:
    """Writes them into a folder. Raises ExportError for a tokenizer that is not read here, or damaged."""
    metadata, place = model.metadata, str(model.path)
    vocabulary = read_vocabulary(metadata, place)
    whole = metadata.get(_WHOLE)
    if isinstance(whole, str):
        (folder / "tokenizer.json").write_text(whole, encoding="utf-8")
    else:
        text = json.dumps(tokenizer_json(vocabulary), ensure_ascii=False)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    named = {f"{role}_token": vocabulary.tokens[at] for role in _ROLES if (at := vocabulary.special(role)) is not None}
    write_json(folder / "tokenizer_config.json", named)
    generation = {"eos_token_id": _stop_tokens(vocabulary), "bos_token_id": vocabulary.special("bos"),
                  "pad_token_id": vocabulary.special("pad"), **_sampling(metadata)}  # fmt: skip
    write_json(
        folder / "generation_config.json", {key: value for key, value in generation.items() if value is not None}
    )
    _write_templates(metadata, folder)
    if isinstance(licence := metadata.get("general.license"), str):
        (folder / "README.md").write_text(f"---\nlicense: {' '.join(licence.split())}\n---\n", encoding="utf-8")
    try:
        Tokenizer.open(folder)
    except PackageError as error:
        raise ExportError(f"the tokenizer of '{place}' cannot be used: {error}") from error


def _sampling(metadata: Mapping[str, object]) -> dict[str, object]:
    """How the file says that tokens are drawn, which its converter had from a generation_config.json."""
    settings = {ours: metadata[key] for key, ours in _SAMPLING.items() if key in metadata}
    return {**settings, "do_sample": True} if settings else {}


def _stop_tokens(vocabulary: Vocabulary) -> list[int]:
    marks = {text: at for at, text in enumerate(vocabulary.tokens) if vocabulary.types[at] in _MARKS}
    named = [at for role in _ENDS if (at := vocabulary.special(role)) is not None]
    return sorted(end_of_turn_tokens(marks, named))


def _write_templates(metadata: Mapping[str, object], folder: Path) -> None:
    """The usual one, and others by their names; a name that is none of a file is left out."""
    if isinstance(usual := metadata.get(_TEMPLATE), str):
        (folder / "chat_template.jinja").write_text(usual, encoding="utf-8")
    for key, text in metadata.items():
        name = key.removeprefix(f"{_TEMPLATE}.")
        if name != key and isinstance(text, str) and _NAME.fullmatch(name):
            (folder / MORE_TEMPLATES).mkdir(exist_ok=True)
            (folder / MORE_TEMPLATES / f"{name}.jinja").write_text(text, encoding="utf-8")
