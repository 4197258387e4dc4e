"""`embedllm bench`: how fast a model is on this machine, alone or side by side with other engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedllm.cli.bench_table import show_report
from embedllm.cli.options import common_options, note
from embedllm.cli.progress import fetch

if TYPE_CHECKING:
    from embedllm.profiling.bench.rounds import Plan
    from embedllm.profiling.bench.specs import Spec


class Counts(click.ParamType):
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value!r}: expected whole numbers with commas between them, such as 128,512.", param, ctx)
        return tuple(int(part) for part in parts)


@click.command(short_help="Benchmark a model's speed and memory, also against other engines.")
@click.argument("model")
@click.option("--device", metavar="NAME", help="Device for MODEL, as in 'embedllm run'.")
@click.option("--against", multiple=True, metavar="WHAT",
              help="Also benchmark FOLDER, FOLDER@DEVICE, onnxruntime-genai[:FOLDER], openvino-genai[:FOLDER], "
              "llama-cpp:FILE.gguf or transformers:FOLDER. Repeatable.")  # fmt: skip
@click.option("--prompt", "prompts", type=Counts(), default="128,512", show_default=True, metavar="N,...",
              help="Prompt lengths in tokens.")  # fmt: skip
@click.option("--depth", "depths", type=Counts(), default="0", show_default=True, metavar="N,...",
              help="Tokens in the KV cache before each prompt.")  # fmt: skip
@click.option(
    "--tokens", type=click.IntRange(min=2), default=64, show_default=True, help="Tokens to generate per reply."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Rounds; each measures all cases of all engines once.",
)
@click.option("--threads", type=click.IntRange(min=0), metavar="N",
              help="CPU threads of every engine; 0: its own default.  [default: physical cores]")  # fmt: skip
@click.option("--exact", is_flag=True, help="Load embedllm packages with --exact.")
@click.option("--no-prefix-cache", is_flag=True,
              help="Load embedllm packages without the prefix cache.")  # fmt: skip
@click.option(
    "--concurrency", type=Counts(), default=(), metavar="N,...", help="Also N concurrent requests (embedllm only)."
)
@click.option("--shared-prefix", is_flag=True, help="Also prompts that share a prefix with the previous one.")
@click.option("--structured", is_flag=True, help="Also replies constrained to a JSON schema (embedllm only).")
@click.option("--cold", is_flag=True, help="Also cold starts in new processes: load time and time to first token.")
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the results as JSON; '-': to stdout, without the table."
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE",
              help="Write a plot, .png or .svg (needs embedllm[plot]).")  # fmt: skip
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@common_options
def bench(
    model: str,
    *,
    device: str | None,
    against: tuple[str, ...],
    prompts: tuple[int, ...],
    depths: tuple[int, ...],
    tokens: int,
    rounds: int,
    threads: int | None,
    exact: bool,
    no_prefix_cache: bool,
    concurrency: tuple[int, ...],
    shared_prefix: bool,
    structured: bool,
    cold: bool,
    json_path: str | None,
    plot: Path | None,
    quiet: bool,
) -> None:
    """Benchmark load, prefill, decode and memory of MODEL: a directory, 'demo', a GGUF file, or a hub repository.

    Each engine runs in its own process; all stay loaded and run one at a time, case by case. Greedy decoding without
    stop tokens and speculation; random prompts, so that no cache helps. "of first" is the median over the rounds of the
    speed relative to MODEL; "bandwidth" is the share of the memory bandwidth that reading weights and KV cache once per
    token takes.
    """
    from embedllm.files.atomic import check_place
    from embedllm.profiling.bench.machine import usual_threads
    from embedllm.profiling.bench.rounds import Plan
    from embedllm.profiling.bench.specs import against_spec, own_spec
    from embedllm.profiling.bench.workload import Workload

    workload = Workload(prompts=prompts, depths=depths, tokens=tokens, rounds=rounds, concurrency=concurrency,
                        shared_prefix=shared_prefix, structured=structured, cold=cold)  # fmt: skip
    if not quiet:
        fetch(model)
    own = own_spec(model, device or "")
    specs = [own, *(against_spec(text, own) for text in against)]
    if plot is not None:
        from embedllm.files.image import check_plot

        check_plot(plot)
    for path in filter(None, (plot, json_path)):
        if str(path) != "-":
            check_place(Path(path))
    plan = Plan(workload=workload, threads=usual_threads() if threads is None else threads, exact=exact,
                prefix_cache=not no_prefix_cache)  # fmt: skip
    results = _measure(specs, plan, (lambda text: None) if quiet else note)
    _hand_out(results, json_path, plot)


def _measure(specs: list[Spec], plan: Plan, say: Callable[[str], None]) -> dict[str, object]:
    from embedllm.profiling.bench.bandwidth import Reader
    from embedllm.profiling.bench.energy import open_meter
    from embedllm.profiling.bench.machine import describe_machine, load_average, usual_threads
    from embedllm.profiling.bench.report import report
    from embedllm.profiling.bench.rounds import measure

    machine, meter = describe_machine(), open_meter()
    reader = Reader(plan.threads or usual_threads())
    findings, rates = measure(specs, plan, bandwidth=reader.rate, on_step=say)
    machine["load_average_after"] = load_average()
    energy = meter if isinstance(meter, str) else ""
    return report(findings, plan, machine=machine, rates=rates, read_threads=reader.threads, energy=energy)


def _hand_out(results: dict[str, object], json_path: str | None, plot: Path | None) -> None:
    """The table, or JSON in its place, on stdout; the files."""
    text = json.dumps(results, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    if json_path == "-":
        click.echo(text, nl=False)
    else:
        show_report(results)
        if json_path:
            from embedllm.files.atomic import atomic_write

            with atomic_write(Path(json_path)) as file:
                file.write(text.encode())
    if plot is not None:
        from embedllm.profiling.bench.plot import draw

        draw(results, plot)
