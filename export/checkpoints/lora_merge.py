"""A LoRA adapter merged into a checkpoint while it is read: weight + scale * B @ A, before anything is rounded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import ExportError, PackageError
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.lora.peft import read_adapter
from embedllm.package.tensors import linears

if TYPE_CHECKING:
    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.types import F32


class MergedSource:
    """A source whose matrices are those that the adapter makes of them. May be read from several threads."""

    def __init__(self, source: Source, path: str | Path, decoder: Decoder) -> None:
        """path: as PEFT saves an adapter. Raises ExportError for one that is damaged, not followed or another model's.

        facts: what a manifest says of it.
        """
        self._source = source
        try:
            adapter = read_adapter(Path(path).name, path, decoder)
        except PackageError as error:
            raise ExportError(str(error)) from error
        self.facts = {"name": adapter.name, "sha256": adapter.sha256}
        matrices = (linear for layer in decoder.layers for linear in linears(layer))
        self._factors = {
            f"{linear.source}.weight": adapter.factors[linear.name]
            for linear in matrices
            if linear.name in adapter.factors
        }

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self._source.check(name, shape)

    def rows(self, name: str, start: int, stop: int) -> F32:
        rows = self._source.rows(name, start, stop)
        if name in self._factors:
            a, b = self._factors[name]
            change: F32 = b[:, start:stop].T @ a.T
            rows = rows + change
        return rows
