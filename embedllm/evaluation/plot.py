"""Sizes of models against their distances from the base, as a picture."""

from __future__ import annotations

from pathlib import Path

from embedllm.evaluation.results import Evaluation
from embedllm.files.image import check_plot, save_plot


def write_plot(evaluation: Evaluation, path: Path) -> None:
    """Draws an evaluation of a text against a base. Raises ValueError for one without, and what check_plot() does."""
    check_plot(path)
    from matplotlib.figure import Figure  # no pyplot: that would look for a display

    points = [(one, one.text.divergence) for one in evaluation.models if one.text is not None and one.text.divergence]
    if evaluation.text is None or evaluation.base is None or not points:
        raise ValueError("a plot shows distances from a base; evaluate a text against one.")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for one, divergence in points:
        size = one.weights_bytes / 1e6
        face = "white" if one.exact else "C0"
        axes.plot([size], [divergence.mean_kl], "o", color="C0", markerfacecolor=face)
        name = _short(one.model, evaluation)
        label = f"{name}, exact" if one.exact else name
        axes.annotate(label, (size, divergence.mean_kl), textcoords="offset points", xytext=(6, 4), fontsize=8)
    if all(divergence.mean_kl > 0 for _, divergence in points):
        axes.set_yscale("log")
    axes.margins(x=0.2)
    axes.set_xlabel("weights file, MB")
    axes.set_ylabel("mean KL from the base, nats a token")
    axes.set_title(
        f"against {_short(evaluation.base.model, evaluation)}: {evaluation.text.tokens:,} tokens of "
        f"{Path(evaluation.text.file).name}"
    )
    axes.grid(visible=True, which="both", alpha=0.3)
    save_plot(figure, path)


def _short(model: str, evaluation: Evaluation) -> str:
    """The last part of a model's path, where no other one has the same."""
    every = {one.model for one in (*evaluation.models, *([evaluation.base] if evaluation.base else []))}
    name = Path(model).name
    return name if name and [Path(other).name for other in every].count(name) == 1 else model
