"""Whether two models mean the same by a token id, so that one may draft for the other. Standard library only."""

from __future__ import annotations

import filecmp
from typing import TYPE_CHECKING

from embedllm.package import Package
from embedllm.text import ModelCodec

if TYPE_CHECKING:
    from embedllm.model import Model

_FILE = "tokenizer.json"


def check_draft(package: Package, tokenizer: ModelCodec, draft: Model) -> None:
    """Raises ValueError when a token id means something else to the draft model."""
    size, found = package.decoder.vocabulary, draft.package.decoder.vocabulary
    odd = None if size != found or _is_one_file(package, draft.package) else _first_other(tokenizer, draft, size)
    if size != found or odd is not None:
        differs = f"{found} tokens instead of {size}" if size != found else f"another token {odd}"
        raise ValueError(
            f"'{draft.name}' cannot draft for '{package.name}': its vocabulary has {differs}. Take a model of the same "
            "family, with the same tokenizer."
        )


def _is_one_file(package: Package, other: Package) -> bool:
    files = [each.folder / _FILE for each in (package, other)]
    return all(file.is_file() for file in files) and filecmp.cmp(*files, shallow=False)


def _first_other(tokenizer: ModelCodec, draft: Model, size: int) -> int | None:
    texts, others = tokenizer.token_text, draft.tokenizer.token_text
    return next((token for token in range(size) if texts(token) != others(token)), None)
