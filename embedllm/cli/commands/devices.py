"""`embedllm devices`: the devices of this machine, and how a model runs on them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from embedllm.cli.commands.inspect import open_folder
from embedllm.cli.options import common_options, note
from embedllm.errors import PackageError

if TYPE_CHECKING:
    from embedllm.loading.device_list import ListedDevice
    from embedllm.loading.tuning_results import Tuning
    from embedllm.profiling.inspection.device_report import Trial


@click.command(short_help="List the devices of this machine.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
@click.option(
    "--probe", is_flag=True, help="Probe each GPU and plug-in again with a tiny model, and check the results."
)
@click.option("--report", is_flag=True, help="Run a model on each device and print a report.")
@click.option(
    "--model",
    "-m",
    metavar="FOLDER",
    help="Model whose tuning results are shown, and that --report runs.  [default: demo]",
)
@common_options
def devices(*, as_json: bool, probe: bool, report: bool, model: str | None) -> None:
    """List the devices that can run models on this machine, and why the others cannot."""
    from embedllm.loading.device_list import listing

    if report and probe:
        raise click.UsageError("--probe and --report are mutually exclusive.")
    if report:
        _report_devices(model or "demo", as_json=as_json)
        return
    rows = list(listing(probe=probe, tuning=_tuning_of(model)))
    if probe and not any(one.is_probed for one in rows):
        note("nothing to probe: no GPU or plug-in is available")
    if as_json:
        click.echo(json.dumps([listed.as_json() for listed in rows], ensure_ascii=False))
        return
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo("\n".join(device_lines(rows, columns)))


def _tuning_of(model: str | None) -> Tuning | None:
    """The tuning results of a model; by default of the demo, where it is installed."""
    from embedllm.loading.tuning_record import recall

    try:
        record = recall(open_folder(model or "demo"))
    except PackageError:
        if model is not None:
            raise
        return None
    if record.is_stale:
        note(record.reason)
    return record.tuning


def device_lines(rows: Sequence[ListedDevice], columns: int | None = None) -> list[str]:
    """A table for people, available devices first: the name, yes or no, and what is to be said, line by line.

    columns: of the terminal, where lines are folded; None: nowhere. A remedy never is, so that it can be copied.
    """
    name_width = max(map(len, ["device", *(one.device.name for one in rows)])) + 2
    indent = " " * (name_width + len("yes  "))
    lines = [f"{'device':{name_width}}available"]
    for one in sorted(rows, key=lambda one: not one.probed_device.available):  # a stable sort: else in their own order
        texts = [line for fact in _facts_of(one) for line in _folded(fact, columns, len(indent))]
        if not one.probed_device.available and one.probed_device.remedy:
            texts.append(one.probed_device.remedy)
        name = f"{one.device.name:{name_width}}{'yes' if one.probed_device.available else 'no'}".ljust(len(indent))
        lines += [f"{start}{line}" for start, line in zip([name, *[indent] * len(texts)], texts, strict=False)]
    return lines


def _facts_of(one: ListedDevice) -> Iterator[str]:
    """What it is, where that is known, and what it runs or why not."""
    device = one.probed_device
    if device.description:
        memory = f", {device.memory / 2**30:.0f} GiB" if device.memory else ""
        yield f"{device.description}{memory} ({device.backend})"
    yield f"runs {one.note}" if device.available else device.reason
    if device.available and one.measured is not None and one.tuning is not None:
        yield f"'{one.tuning.model}' by {one.measured.runtime}: {one.measured.speed}, measured on {one.tuning.date}"


def _folded(text: str, columns: int | None, indent: int) -> list[str]:
    if columns is None:
        return [text]
    return textwrap.wrap(text, max(columns - indent, 30), break_long_words=False, break_on_hyphens=False)


def _report_devices(model: str, *, as_json: bool) -> None:
    """Text that can be pasted as it is."""
    from embedllm.profiling.inspection.device_report import machine, trials

    package = open_folder(model)
    facts = {**machine(), "model": package.name}
    device_trials = []
    if not as_json:
        click.echo("\n".join(f"{key}: {value}" for key, value in facts.items()))
    for trial in trials(package, lambda name: note(f"{name} ...")):
        device_trials.append(trial)
        if not as_json:
            click.echo(_trial_text(trial))
    if as_json:
        click.echo(json.dumps({"machine": facts, "devices": [dataclasses.asdict(trial) for trial in device_trials]}))


def _trial_text(trial: Trial) -> str:
    lines = [f"\n{trial.device.name}: {trial.device.backend}, {trial.device.description}".rstrip(", ")]
    lines += [f"  {key}: {value}" for key, value in trial.facts.items()]
    if trial.error:
        return "\n".join([*lines, f"  not run: {trial.error}"])
    return "\n".join(
        [
            *lines,
            f"  load {trial.load_s:.1f} s, first run {trial.first_s:.1f} s",
            f"  prefill {trial.prefill_tokens_s:.1f} tokens/s, decode {trial.decode_tokens_s:.1f} tokens/s",
            f"  logits differ from the reference's by at most {trial.max_difference:.3g} of {trial.max_logit:.3g}",
            f"  {trial.same_tokens} greedy tokens are the reference's",
        ]
    )
