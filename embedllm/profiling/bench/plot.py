"""A picture of a report: what each engine did, side by side. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedllm.files.image import save_plot
from embedllm.profiling.bench.workload import REPLY

_PANELS = (("prefill_tokens_s", "prefill, tokens/s"), ("decode_tokens_s", "decode, tokens/s"))


def draw(report: dict[str, Any], path: Path) -> None:
    """Bars of the medians, a line from the least to the most; replies only."""
    from matplotlib.figure import Figure  # without pyplot, which opens windows and keeps what it made

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        _bars(axes, report["engines"], key)
        axes.set_title(title)
        axes.grid(axis="y", alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    figure.suptitle(
        f"{report['machine']['cpu']}, threads: {report['workload']['threads'] or 'their own choice'}", fontsize="small"
    )
    save_plot(figure, path)


def _bars(axes: Any, engines: Sequence[dict[str, Any]], key: str) -> None:  # noqa: ANN401 - of matplotlib
    names = [_name(case) for case in engines[0]["cases"] if case["kind"] == REPLY]
    width = 0.8 / len(engines)
    for place, engine in enumerate(engines):
        values = {_name(case): case[key] for case in engine["cases"] if case["kind"] == REPLY}
        here = [(index, values[name]) for index, name in enumerate(names) if name in values]
        at = [index + (place - (len(engines) - 1) / 2) * width for index, _ in here]
        medians = [value["median"] for _, value in here]
        low = [value["median"] - value["least"] for _, value in here]
        high = [value["most"] - value["median"] for _, value in here]
        axes.bar(at, medians, width, yerr=(low, high), label=engine["name"], error_kw={"lw": 0.8})
    axes.set_xticks(range(len(names)), names)


def _name(case: dict[str, Any]) -> str:
    return f"{case['prompt']}" + (f" behind {case['depth']}" if case["depth"] else "")
