"""The command `embedllm tune`: how a model runs fastest on this machine, measured and remembered."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import click

from embedllm.cli.options import common_options, note
from embedllm.cli.progress import fetch
from embedllm.cli.tables import new_console, new_table
from embedllm.errors import EmbedError

if TYPE_CHECKING:
    from embedllm.loading.tuning_results import Measured, Tuning


@click.command(short_help="Find and store the fastest runtime options of a model on this machine.")
@click.argument("model")
@click.option("--device", "devices", multiple=True, metavar="NAME",
              help="Device to measure. Repeatable.  [default: the candidates of 'auto', and "
              "openvino]")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="N",
              help="Approximate time limit.")  # fmt: skip
@click.option("--exact", is_flag=True, help="Tune for loads with --exact.")
@click.option("--kv", type=click.Choice(["int8", "int4"]), help="Tune for loads with --kv.")
@click.option("--forget", is_flag=True, help="Delete the stored results of the model, and measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@common_options
def tune(
    *, model: str, devices: tuple[str, ...], seconds: float, exact: bool, kv: str | None, forget: bool, as_json: bool
) -> None:
    """Measure devices, threads, spinning and float activations for a model on this machine, and store the best.

    MODEL is a directory, 'demo', a GGUF file, or a hub repository. Later loads use the results until the model, a
    runtime, a driver or the processor changes; EMBEDLLM_TUNED=off ignores them. No option that lowers the requested
    precision is chosen. Run it on an idle machine.
    """
    import embedllm
    from embedllm.loading import tuning_record

    if forget:
        count = embedllm.forget_tuning(model)
        click.echo(json.dumps({"forgotten": count}) if as_json else f"forgotten: {count}")
        return
    if reason := tuning_record.unwritable():  # before a minute of measuring
        raise EmbedError(f"the results could not be stored, and so nothing was measured: {reason}.")
    fetch(model)
    trials: set[str] = set()

    def say(trial: str) -> None:
        if not trials:
            _say_if_busy()
        if trial not in trials:
            trials.add(trial)
            note(trial)

    tuning = embedllm.tune(model, devices=devices, seconds=seconds, exact=exact, kv=kv, on_trial=say)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(tuning), ensure_ascii=False))
    else:
        _show(tuning)
    if tuning.unkept:
        raise EmbedError(f"the results were not stored: {tuning.unkept}.")


def _say_if_busy() -> None:
    """Other programs make a measurement useless; where the system tells of them."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > (os.cpu_count() or 1) / 2:
        note(f"other programs use this machine (load {load:.1f}); the results may not be representative")


def _show(tuning: Tuning) -> None:
    columns = (
        "device",
        "settings",
        "",
        "prompt, tokens/s",
        "reply, tokens/s",
        "256 + 64, s",
        "of its default",
        "rounds",
    )
    new_console().print(new_table(columns, [_row(one, tuning) for one in tuning.measured], numbers_from=3))
    for name, why in tuning.left_out:
        note(f"not measured: {name}: {why}")
    chosen = tuning.chosen(tuning.device)
    if chosen is None:
        note("'auto' is unchanged: its device was not measured")
        return
    note(f"'auto' takes {chosen.device} ({chosen.runtime}); measured in {tuning.took_s:.0f} s")
    if min(one.rounds for one in tuning.measured if one.is_chosen) < 3:
        note("defaults kept: there was no time for three rounds; increase --seconds")


def _row(one: Measured, tuning: Tuning) -> tuple[str, ...]:
    mark = "" if not one.is_chosen else "taken by auto" if one.device == tuning.device else "taken"
    return (one.device, str(one.runtime), mark, f"{one.prefill_tokens_s:,.0f}", f"{one.decode_tokens_s:,.1f}",
            f"{one.seconds:.2f}", f"{one.ratio:.2f}", str(one.rounds))  # fmt: skip
