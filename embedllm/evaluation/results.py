"""What an evaluation found, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How far a model is from the base, over all tokens of the text."""

    perplexity_ratio: float  # to the base's
    mean_kl: float  # nats; of the base's distribution of the next token from the model's
    kl_95: float  # the 95th percentile of it
    kl_99: float
    same_top: float  # how often both hold the same token most probable, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """How well a model foresees the text."""

    perplexity: float  # exp(mean of -ln p(token)), over all tokens but the first of each window
    divergence: Divergence | None  # None: there was no base, or this is it


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongReply:
    """A task whose reply was not right."""

    line: int  # of the file, from 1
    reply: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """How many tasks of a group a model did."""

    group: str
    tasks: int
    right: int  # by the rule of the group
    verbatim: int  # letter for letter
    wrong: tuple[WrongReply, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScore:
    """One model, as it was loaded, and what it did."""

    model: str  # as it was named by the caller
    device: str
    backend: str  # "onnxruntime 1.31.1"
    exact: bool | None  # float activations in every product; None: it was given loaded, which does not tell
    weights_bytes: int  # of the weights file
    weights_sha256: str
    bits_per_weight: float | None  # of weights_bytes but rotary tables; None: nothing tells the number of weights
    text: TextScore | None
    tasks: tuple[TaskScore, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRead:
    """What all models read."""

    file: str
    tokens: int  # in whole windows
    window: int  # tokens per window; each window starts with an empty context
    left_out: int  # tokens at the ends of documents, which fill no window


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All of it."""

    text: TextRead | None
    tasks: str | None  # the file
    base: ModelScore | None
    models: tuple[ModelScore, ...]
