"""Whether a model can be the draft model of another: their token ids must mean the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.package.package import Package
from embedllm.text.protocols import ModelCodec
from embedllm.text.vocabulary import difference

if TYPE_CHECKING:
    from embedllm.model.model import Model


def check_draft(package: Package, tokenizer: ModelCodec, draft: Model) -> None:
    """Raises ValueError when a token id means something else to the draft model."""
    if differs := difference(package, tokenizer, draft.package, draft.tokenizer):
        raise ValueError(
            f"'{draft.name}' cannot draft for '{package.name}': its vocabulary has {differs}. Take a model of the same "
            "family, with the same tokenizer."
        )
