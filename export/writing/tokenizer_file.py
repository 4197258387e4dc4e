"""The tokenizer.json of a package: that of the checkpoint, with what transformers takes from the files beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from embedllm.errors import ExportError, PackageError
from embedllm.export.checkpoints.open_files import reading
from embedllm.export.writing.tokenizer_class import byte_level_class
from embedllm.files.json_object import read_json_object
from embedllm.text.tokenizer import Tokenizer
from embedllm.text.tokenizer_config import read_tokenizer_config
from embedllm.types import JSON

FILE = "tokenizer.json"
_SHOWN = 5  # tokens in a warning

_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageTokenizer:
    """The tokenizer that a package will have."""

    tokenizer: Tokenizer
    changed: str | None  # its tokenizer.json; None: the checkpoint's

    def write(self, partial: Path) -> None:
        """Into a package that has the checkpoint's."""
        if self.changed is not None:
            (partial / FILE).write_text(self.changed, encoding="utf-8")


def read_tokenizer(folder: Path) -> PackageTokenizer:
    """The tokenizer of a checkpoint. Raises ExportError for one that cannot be used."""
    try:
        with reading(folder / FILE):
            (folder / FILE).open("rb").close()
        tokenizer = Tokenizer.open(folder)
        changed = _changed(folder, tokenizer)
        if changed is not None:
            tokenizer = Tokenizer.open(folder, serialized=changed)
        return PackageTokenizer(tokenizer=tokenizer, changed=changed)
    except PackageError as error:
        raise ExportError(f"the tokenizer of '{folder}' cannot be used: {error}") from error


def warn_of_missing_rows(tokenizer: Tokenizer, vocabulary: int) -> None:
    """Says which tokens the embedding has no rows for: a text with one of them cannot be fed."""
    missing = tokenizer.tokens_from(vocabulary)
    if not missing:
        return
    shown = ", ".join(f"{text!r} ({token})" for token, text in list(missing.items())[:_SHOWN])
    _log.warning(
        "the tokenizer has %d tokens and the model's embedding rows for %d: a prompt with %s%s will be refused. Take "
        "the tokenizer that the model was trained with, or one without them.",
        vocabulary + len(missing), vocabulary, shown, "" if len(missing) <= _SHOWN else " or another of them",
    )  # fmt: skip


def warn_of_no_end(stop_tokens: object) -> None:
    """Says that nothing ends a reply, where that is so."""
    if not stop_tokens:
        _log.warning(
            "no stop token is known: a reply goes on up to max_tokens or the context. Name one by 'eos_token_id' in "
            "generation_config.json, or by 'eos_token' in tokenizer_config.json, and export again."
        )


def _changed(folder: Path, tokenizer: Tokenizer) -> str | None:
    """tokenizer.json with what the other files say; None where that changes nothing."""
    config, tokenizer_config = (read_json_object(folder / name) for name in ("config.json", "tokenizer_config.json"))
    whole = read_json_object(folder / FILE)
    added = _legacy_tokens(folder, whole, tokenizer)
    whole["added_tokens"] = [*_entries(whole.get("added_tokens")), *added]
    is_other = bool(added)
    if byte_level_class(config, tokenizer_config) is not None:
        for part in _byte_levels(whole.get("pre_tokenizer")):
            adds_prefix_space = tokenizer_config.get("add_prefix_space") is True
            is_other |= part.get("add_prefix_space") is not adds_prefix_space
            part["add_prefix_space"] = adds_prefix_space
    return json.dumps(whole, ensure_ascii=False) if is_other else None


def _legacy_tokens(folder: Path, whole: Mapping[str, JSON], tokenizer: Tokenizer) -> list[dict[str, JSON]]:
    """The tokens that only added_tokens.json has, as tokenizer.json lists them, by the ids that transformers gives."""
    present = {str(entry.get("content")) for entry in _entries(whole.get("added_tokens"))}
    tokens = [token for token in read_tokenizer_config(folder).legacy if token.content not in present]
    return [{"id": tokenizer.token_id(token.content), **asdict(token)} for token in tokens]


def _byte_levels(part: JSON) -> list[dict[str, JSON]]:
    """The pre-tokenizers of that type, in sequences too."""
    if not isinstance(part, dict):
        return []
    if part.get("type") == "Sequence":
        return [byte_level for inner in _entries(part.get("pretokenizers")) for byte_level in _byte_levels(inner)]
    return [part] if part.get("type") == "ByteLevel" else []


def _entries(value: JSON) -> list[dict[str, JSON]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
