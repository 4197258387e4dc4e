"""Records of tune() that tests make up."""

from __future__ import annotations

from pathlib import Path

from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.loading import tuning_record
from embedllm.loading.tuning_results import Measured, Tuning
from embedllm.package.package import open_package


def row(name: str, runtime: RuntimeOptions = DEFAULT, *, is_chosen: bool = True) -> Measured:
    return Measured(device=name, runtime=runtime, prefill_tokens_s=1000.0, decode_tokens_s=50.0, seconds=1.5, ratio=0.9,
                    rounds=3, is_chosen=is_chosen)  # fmt: skip


def remember(folder: Path, device: str, *rows: Measured, exact: bool = False, kv: str | None = None) -> Tuning:
    """As if tune() had found this."""
    tuning = Tuning(model="m", exact=exact, kv=kv, device=device, measured=rows, left_out=(("cuda", "none"),),
                    took_s=1.0, at=1_790_000_000.0)  # fmt: skip
    assert tuning_record.keep(open_package(folder), tuning) == ""
    return tuning


SPINNING = row("cpu", RuntimeOptions(threads=1, spinning=True))
