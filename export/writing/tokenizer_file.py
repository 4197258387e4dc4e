"""The tokenizer of a package, and the tokens that end a turn by it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import ExportError, PackageError
from embedllm.export.checkpoints.end_of_turn import end_of_turn_tokens
from embedllm.export.checkpoints.open_files import reading
from embedllm.text.tokenizer import Tokenizer

FILE = "tokenizer.json"

_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageTokenizer:
    """The tokenizer that a package will have."""

    tokenizer: Tokenizer

    @property
    def ends(self) -> list[int]:
        """The tokens that end a turn: its own EOS token, then those whose text says so."""
        own = self.tokenizer.eos
        return end_of_turn_tokens(self.tokenizer.added_tokens, [] if own is None else [own])


def read_tokenizer(folder: Path) -> PackageTokenizer:
    """The tokenizer of a checkpoint. Raises ExportError for one that cannot be used."""
    try:
        with reading(folder / FILE):
            (folder / FILE).open("rb").close()
        return PackageTokenizer(tokenizer=Tokenizer.open(folder))
    except PackageError as error:
        raise ExportError(f"the tokenizer of '{folder}' cannot be used: {error}") from error


def warn_of_no_end(stop_tokens: object) -> None:
    """Says that nothing ends a reply, where that is so."""
    if not stop_tokens:
        _log.warning(
            "no stop token is known: a reply goes on up to max_tokens or the context. Name one by 'eos_token_id' in "
            "generation_config.json, or by 'eos_token' in tokenizer_config.json, and export again."
        )
