"""Rotary position embeddings and what scales them to longer contexts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by a factor (Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """NTK scaling whose base grows with the length once it exceeds the trained one; exact for every length.

    Row p of the tables is what a model sees that has just reached length p + 1, so the result does not depend on how
    a prompt is chunked. transformers does the same token by token, but rotates a long prompt by its last position.
    """

    factor: float
    original_context: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1: low frequencies divided by a factor, high ones kept, those between blended."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): a ramp between interpolated and kept frequencies; cos and sin scaled."""

    factor: float
    original_context: int  # tokens
    beta_fast: float
    beta_slow: float
    attention_factor: float  # multiplies cos and sin
    truncate: bool  # round the ends of the ramp to whole dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE (Ding et al. 2024): frequencies divided one by one, by other factors beyond the trained length.

    One set of factors rotates all of a text: the context of the export decides, not how long a text has become.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int  # tokens
    context: int  # tokens that the export holds; for more than the trained ones the long factors are taken
    attention_factor: float  # multiplies cos and sin
    long_attention_factor: float | None = None  # in its place with the long factors (Phi-MoE); None: the same

    @property
    def is_long(self) -> bool:
        return self.context > self.original_context


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalScaling:
    """Frequencies of a full rotary embedding, of which only the fastest are used (Gemma 4's partial rotary)."""

    head_dim: int
    factor: float  # divides positions


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling | ProportionalScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Mrope:
    """Multimodal RoPE (M-RoPE; Qwen2-VL, Wang et al. 2024): tokens of images have a time, a row and a column.

    Those of text have one position, as in RoPE. embedllm/backends/mrope.py says which.
    """

    sections: tuple[int, ...]  # pairs of dimensions that the time, the row and the column rotate
    interleaved: bool = False  # time, row, column, time, ... as far as there are rows and columns; else one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding."""

    base: float  # theta
    rotary_dim: int  # leading head dimensions that are rotated (partial rotary); the rest pass through
    scaling: RopeScaling | None = None
    mrope: Mrope | None = None  # of a vision-language model whose images have rows and columns
