"""What a caller of convert() wants, checked before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.openvino.tokenizer import check_installed
from embedllm.export.recipe import Recipe
from embedllm.export.writing.atomic_folder import check_place
from embedllm.files.progress import Progress
from embedllm.hub.location import Location

EXPORTERS = ("embedllm", "optimum")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The arguments of convert(), whose docstring explains them.

    Raises ValueError for values that no export takes, ExportError for options that exclude one another, a place that
    cannot be written, and missing packages.
    """

    source: str | Path | Location
    out: Path
    recipe: Recipe = field(default_factory=Recipe)
    exporter: str = "embedllm"
    revision: str | None = None
    task: str | None = None
    lora: Path | None = None
    calibration: Path | None = None
    importance: Path | None = None
    mmproj: Path | bool = True
    replace: bool = False
    verify: bool = False
    openvino_tokenizer: bool = False
    openvino_images: bool = False
    genai_images: bool = False
    shard: int | None = None
    on_progress: Callable[[Progress], None] = lambda _: None

    def __post_init__(self) -> None:
        if self.exporter not in EXPORTERS:
            raise ValueError(f"exporter is {self.exporter!r}; expected {' or '.join(map(repr, EXPORTERS))}.")
        if self.exporter == "optimum":
            encoder = None if isinstance(self.mmproj, bool) else self.mmproj
            options = {**self.options, "task": self.task, "mmproj": encoder}
            if unusable := [name for name, value in options.items() if value]:
                raise ExportError(f"{', '.join(unusable)}: not with the exporter 'optimum'. Leave it out.")
            return
        check_place(self.out, self.replace, inputs=self.inputs)
        if self.shard is not None and self.shard < 1:
            raise ValueError(f"shard is {self.shard} bytes; expected 1 or more.")
        if self.openvino_tokenizer:
            check_installed()

    @property
    def is_left_open(self) -> bool:
        """Whether nobody asked for calibration, so that an export goes on without where it fails."""
        recipe = self.recipe
        return not any((recipe.method, recipe.size, recipe.mean_bits, self.calibration, self.importance))

    @property
    def inputs(self) -> list[str | Path]:
        """What is read, as far as it was named."""
        source = self.source.folder if isinstance(self.source, Location) else self.source
        files = (self.lora, self.calibration, self.importance, self.mmproj)
        return [source, *(file for file in files if isinstance(file, Path))]

    @property
    def weight_options(self) -> dict[str, object]:
        """Those that change weights or choose their integers, by name; None where not given."""
        return {"lora": self.lora, "calibration": self.calibration, "importance": self.importance}

    @property
    def options(self) -> dict[str, object]:
        """Those that only some models or exporters take, by name; None or False where not given."""
        outputs = {"verify": self.verify, "openvino_tokenizer": self.openvino_tokenizer,
                   "openvino_images": self.openvino_images, "genai_images": self.genai_images,
                   "shard": self.shard}  # fmt: skip
        return {**self.weight_options, **outputs}
