"""Whether two models mean the same by a token id, so that one may draft for the other, or be compared with it.

Standard library only.
"""

from __future__ import annotations

import filecmp

from embedllm.package.package import Package
from embedllm.text.protocols import ModelCodec

_FILE = "tokenizer.json"


def difference(package: Package, tokenizer: ModelCodec, other: Package, others: ModelCodec) -> str:
    """What the other vocabulary has: "299 tokens instead of 307", "another token 5"; empty when it is the same.

    tokenizer, others: the two packages' own.
    """
    size, other_size = package.architecture.vocabulary, other.architecture.vocabulary
    if size != other_size:
        return f"{other_size} tokens instead of {size}"
    odd = None if _is_one_file(package, other) else _first_other(tokenizer, others, size)
    return "" if odd is None else f"another token {odd}"


def _is_one_file(package: Package, other: Package) -> bool:
    files = [each.folder / _FILE for each in (package, other)]
    return all(file.is_file() for file in files) and filecmp.cmp(*files, shallow=False)


def _first_other(tokenizer: ModelCodec, others: ModelCodec, size: int) -> int | None:
    return next((token for token in range(size) if tokenizer.token_text(token) != others.token_text(token)), None)
