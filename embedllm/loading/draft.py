"""Whether a model can draft for another: their token ids must mean the same, or it is a head of that one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.files.command_line import shell_word
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.package import MANIFEST, Package, open_package
from embedllm.text.protocols import ModelCodec
from embedllm.text.vocabulary import difference

if TYPE_CHECKING:
    from embedllm.loading.options import LoadOptions
    from embedllm.model.model import Model


def check_is_no_head(package: Package) -> None:
    """Raises PackageError for a draft head, which runs beside its target model only."""
    if _is_head(package):
        raise PackageError(
            f"'{package.folder}' is a head, which drafts for the model in the folder around it. "
            f"Load that one: embedllm.load('{package.folder.parent}', draft='{package.folder}')"
        )


def _is_head(package: Package) -> bool:
    return isinstance(package.architecture, Decoder) and package.architecture.is_draft_head


def head_of(package: Package, options: LoadOptions) -> Package | None:
    """The head (MTP, EAGLE-3) that draft= names; None where it names a draft model, or nothing.

    Raises PackageError for a folder that is damaged, ValueError for a head of another model and for options that it
    cannot be combined with.
    """
    draft = options.draft
    if draft is None or not isinstance(draft, str | os.PathLike) or not (Path(draft) / MANIFEST).is_file():
        return None
    head = open_package(draft)
    if not _is_head(head):
        return None
    if head.folder.resolve().parent != package.folder.resolve():
        raise ValueError(
            f"'{head.folder}' is a head of the model in '{head.folder.resolve().parent}', and drafts for no other."
        )
    if head.manifest.get("target_sha256") != package.stored.sha256:
        command = "mtp" if head.decoder.mtp is not None else "eagle"
        raise PackageError(
            f"'{head.folder}' was made for other weights than those of '{package.name}'. "
            f"Write it again: embedllm {command} {shell_word(package.folder)} CHECKPOINT --replace"
        )
    if odd := [name for name in ("kv", "adapters") if getattr(options, name) is not None]:
        raise ValueError(f"a head that drafts is not combined with {' and '.join(odd)}; leave one out.")
    return head


def hidden_graph_of(head: Package | None) -> str:
    """The variant of the target model's graph that gives what a head reads; empty without a head."""
    from embedllm.package.graph_variants import EAGLE_HIDDEN, HIDDEN  # which reads packings by NumPy

    if head is None:
        return ""
    return EAGLE_HIDDEN.name if head.decoder.eagle is not None else HIDDEN.name


def check_draft(package: Package, tokenizer: ModelCodec, draft: Model) -> None:
    """Raises ValueError when a token id means something else to the draft model."""
    if differs := difference(package, tokenizer, draft.package, draft.tokenizer):
        raise ValueError(
            f"'{draft.name}' cannot draft for '{package.name}': its vocabulary has {differs}. Take a model of the same "
            "family, with the same tokenizer."
        )
