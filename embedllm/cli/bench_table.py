"""The tables of `embedllm bench`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embedllm.cli.tables import new_console, new_table

if TYPE_CHECKING:
    from rich.console import Console

Spread = Mapping[str, float]
_SPREAD = re.compile(r"^([\d.,]+) \([\d.,]+-[\d.,]+\)$")  # as _spread() writes it
_ANY_WIDTH = 10_000  # columns


def show_report(results: dict[str, Any]) -> None:
    """What embedllm.profiling.bench.report.report() gave, on stdout."""
    console = new_console()
    is_narrow = False
    for line in _conditions(results):
        console.print(line, markup=False, soft_wrap=True)
    engines = results["engines"]
    for title, columns, rows in (
        ("engines", ("", "model", "weights sha256", "weights, MB", "bits", "device", "versions"), _models(engines)),
        ("load and memory", ("", "load, s", "first token then, s", "peak loaded, MB", "peak, MB", "private, MB"),
         _loads(engines)),
        ("cold", ("", "process to ready, s", "load, s", "first token, s"), _cold(engines)),
        ("replies", ("", "prompt", "behind", "first token, s", "prefill, tokens/s", "of first", "decode, tokens/s",
                     "of first", "token p50, ms", "p95", "p99", "bandwidth"), _replies(engines)),
        ("a shared prefix; of a prompt as long that shares nothing",
         ("", "new", "shared", "first token, s", "of unshared", "decode, tokens/s", "of first"), _shared(engines)),
        ("held to a JSON schema; of the same without",
         ("", "first token, s", "decode, tokens/s", "of plain", "token p50, ms", "p95", "p99"), _structured(engines)),
        ("concurrent requests, prompts included",
         ("", "replies", "tokens/s of all", "of first", "of one"), _concurrent(engines)),
    ):  # fmt: skip
        lines = list(rows)
        if lines:
            console.print(f"\n[bold]{title}[/bold]")
            shown = fitting(console, columns, lines)
            is_narrow |= shown != lines
            console.print(new_table(columns, shown, numbers_from=1 if title != "engines" else None))
    if is_narrow:
        console.print("\nmedians only: a wider terminal, or --json, has the least and the most of each figure")
    for line in _left_out(engines):
        console.print(line, markup=False, soft_wrap=True)


def fitting(console: Console, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
    """The rows; in a terminal that they are too wide for, with the medians alone, so that no cell is folded."""
    width = new_table(columns, rows).__rich_measure__(console, console.options.update(max_width=_ANY_WIDTH)).maximum
    if width <= console.width:
        return rows
    return [tuple(_SPREAD.sub(r"\1", cell) for cell in row) for row in rows]


def _conditions(results: dict[str, Any]) -> Iterator[str]:
    machine, workload, bandwidth = results["machine"], results["workload"], results["bandwidth"]
    hardware = next((engine["hardware"] for engine in results["engines"] if not engine["on_host"]), None)
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.1f} GB, {machine['system']}, "
        f"Python {machine['python']}" + (f"; {hardware}" if hardware else "")
    )
    yield (
        f"load average {machine['load_average']:.1f} before, {machine['load_average_after']:.1f} after; memory is "
        f"read at {bandwidth['bytes_s'] / 1e9:.1f} GB/s by {bandwidth['threads']} threads"
    )
    threads = workload["threads"] or "each engine's own choice"
    ours = ["exact"] * workload["exact"] + ["without a prefix cache"] * (not workload["prefix_cache"])
    yield (
        f"threads: {threads}; {workload['rounds']} rounds, {workload['tokens']} tokens a reply; "
        f"{workload['conditions']}{''.join(f'; folders of ours {text}' for text in ours)}; "
        "figures are medians (least-most)"
    )
    energy = "read, joules a token are in --json" if results["energy"] == "read" else results["energy"]
    yield f"energy: {energy}" + (f"; cold: {workload['cold_means']}" if workload["cold_means"] else "")


def _models(engines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for one in engines:
        bits = "mixed or unknown" if one["bits"] is None else str(one["bits"])
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        group = f", groups of {one['group']}" if one["group"] else ""
        sha256 = one["weights_sha256"][:16] or "unknown"
        yield one["name"], one["model"], sha256, _mb(one["weights_bytes"]), bits + group, one["device"], versions


def _loads(engines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for one in engines:
        sizes = (one["loaded_peak_bytes"], one["peak_bytes"], one["private_bytes"])
        yield one["name"], f"{one['load_s']:.2f}", f"{one['first_reply_first_token_s']:.2f}", *map(_mb, sizes)


def _cold(engines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for one in engines:
        if one["cold"]:
            yield one["name"], *(_spread(one["cold"][key], 2) for key in ("start_s", "load_s", "first_token_s"))


def _replies(engines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, case in _of("reply", engines):
        yield (
            name,
            f"{case['prompt']:,}",
            f"{case['depth']:,}",
            _spread(case["first_token_s"], 3),
            _spread(case["prefill_tokens_s"], 0),
            f"{case['prefill_of_first']:.2f}",
            _spread(case["decode_tokens_s"], 1),
            f"{case['decode_of_first']:.2f}",
            *_milliseconds(case),
            "" if case["bandwidth_share"] is None else f"{case['bandwidth_share']:.0%}",
        )


def _shared(engines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, case in _of("shared-prefix", engines):
        first, decode = _spread(case["first_token_s"], 3), _spread(case["decode_tokens_s"], 1)
        unshared, ratio = f"{case['first_token_of_unshared']:.1%}", f"{case['decode_of_first']:.2f}"
        yield name, f"{case['prompt']:,}", f"{case['depth']:,}", first, unshared, decode, ratio


def _structured(engines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, case in _of("structured", engines):
        first, decode = _spread(case["first_token_s"], 3), _spread(case["decode_tokens_s"], 1)
        yield name, first, decode, f"{case['decode_of_plain']:.2f}", *_milliseconds(case)


def _concurrent(engines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, case in _of("concurrency", [{**one, "cases": list(_with_alone(one))} for one in engines]):
        of_one = "" if case["alone"] is None else f"{case['tokens_s']['median'] / case['alone']:.2f}"
        yield name, f"{case['streams']:,}", _spread(case["tokens_s"], 1), f"{case['of_first']:.2f}", of_one


def _with_alone(engine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The cases of several replies, each with the speed of one; by engine, as two may have the same name."""
    cases = [case for case in engine["cases"] if case["kind"] == "concurrency"]
    alone = next((case["tokens_s"]["median"] for case in cases if case["streams"] == 1), None)
    return ({**case, "alone": alone} for case in cases)


def _of(kind: str, engines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cases of one kind of every engine; those of one length together."""
    cases = [(engine["name"], case) for engine in engines for case in engine["cases"] if case["kind"] == kind]
    yield from sorted(cases, key=lambda one: (one[1]["depth"], one[1]["prompt"], one[1]["streams"]))


def _left_out(engines: Sequence[dict[str, Any]]) -> Iterator[str]:
    for one in engines:
        if one["not_measured"]:
            kinds = dict.fromkeys(
                "a reply at a depth" if case["kind"] == "reply" else case["kind"] for case in one["not_measured"]
            )
            yield f"not measured with {one['name']}, whose interface here has no such thing: {', '.join(kinds)}"


def _milliseconds(case: dict[str, Any]) -> list[str]:
    return [f"{1000 * case['token_s'][name]:.1f}" for name in ("p50", "p95", "p99")]


def _spread(value: Spread, digits: int) -> str:
    return f"{value['median']:,.{digits}f} ({value['least']:,.{digits}f}-{value['most']:,.{digits}f})"


def _mb(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e6:,.0f}"
