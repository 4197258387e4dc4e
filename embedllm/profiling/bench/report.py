"""What was found, as the JSON object that `embedllm bench --json` writes. Seconds, bytes, joules, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from embedllm.files.version import __version__
from embedllm.profiling.bench.numbers import latencies, ratio, spread
from embedllm.profiling.bench.rounds import Findings, Plan, Sample, can_run
from embedllm.profiling.bench.workload import CONCURRENT, REPLY, SEED, SHARED, STRUCTURED, Case

FORMAT = 1
COLD = "a fresh process each time; the files stay in the system's cache, as only root can drop that"
CONDITIONS = (
    "greedy, stop tokens off, speculation off; prompts are random token ids, no two of which begin alike; "
    "engines run in turn, one at a time, each in a process of its own"
)


def report(
    findings: Sequence[Findings], plan: Plan, *, machine: dict[str, object], rates: Sequence[float], read_threads: int,
    energy: str
) -> dict[str, Any]:  # fmt: skip
    """machine: of describe_machine(). rates: memory bandwidth by round, with read_threads threads, bytes per second.

    energy: why it is not measured; empty where it is. Times are seconds, all else is in bytes, tokens and joules.
    """
    best = max(rates)
    return {
        "format": FORMAT,
        "embedllm": __version__,
        "machine": machine,
        "workload": {**asdict(plan.workload), "threads": plan.threads, "exact": plan.exact,
                     "prefix_cache": plan.prefix_cache, "seed": SEED, "conditions": CONDITIONS,
                     "cold_means": COLD if plan.workload.cold else None},
        "bandwidth": {"threads": read_threads, "bytes_s": best, "rounds": list(rates)},
        "energy": energy or "read",
        "engines": [_engine(one, findings[0], best, plan.workload.cases) for one in findings],
    }  # fmt: skip


def _engine(one: Findings, first: Findings, bandwidth: float, cases: Sequence[Case]) -> dict[str, Any]:
    return {
        "name": one.spec.label,
        "engine": one.spec.engine,
        **one.about,
        "load_s": one.opened["load_s"],
        "start_s": one.opened["start_s"],
        "loaded_peak_bytes": one.opened["peak_bytes"],
        "loaded_private_bytes": one.opened["private_bytes"],
        "peak_bytes": one.peak_bytes,
        "private_bytes": one.private_bytes,
        "first_reply_first_token_s": one.first[0],
        "cold": {key: spread([cold[key] for cold in one.cold]) for key in one.cold[0]} if one.cold else None,
        "cases": [_case(one, first, case, bandwidth) for case in cases if can_run(one.about, case)],
        "not_measured": [asdict(case) for case in cases if not can_run(one.about, case)],
    }


def _case(one: Findings, first: Findings, case: Case, bandwidth: float) -> dict[str, Any]:
    samples, base = one.samples[case], first.samples.get(case)
    if case.kind == CONCURRENT:
        speeds, others = (_totals(case, each) for each in (samples, base or samples))
        figures: dict[str, Any] = {"tokens_s": spread(speeds), "of_first": ratio(speeds, others)}
    else:
        figures = _reply(one, samples, base or samples, case, bandwidth)
    joules = [sample.joules for sample in samples if sample.joules is not None]
    count = case.tokens * case.streams
    return {
        **asdict(case),
        **figures,
        "joules_per_token": spread([each / count for each in joules]) if joules else None,
    }


def _reply(
    one: Findings, samples: Sequence[Sample], base: Sequence[Sample], case: Case, bandwidth: float
) -> dict[str, Any]:
    """Prefill and decode apart. The first token is the prefill's, each further one a step's."""
    decode, others = ([decode_rate(sample.times) for sample in each] for each in (samples, base))
    steps = [late - early for sample in samples for early, late in pairwise(sample.times)]
    prefill, before = ([case.prompt / sample.times[0] for sample in each] for each in (samples, base))
    speed = spread(decode)
    figures: dict[str, Any] = {
        "first_token_s": spread([sample.times[0] for sample in samples]),
        "decode_tokens_s": speed,
        "decode_of_first": ratio(decode, others),
        "token_s": latencies(steps),
        "bandwidth_share": _share(one.about, case, speed["median"], bandwidth),
    }
    if case.kind == REPLY:  # else part of the prompt was not computed, or a grammar was compiled
        figures |= {"prefill_tokens_s": spread(prefill), "prefill_of_first": ratio(prefill, before)}
    plain = [sample.plain for sample in samples if sample.plain is not None]
    if case.kind == SHARED:
        figures["first_token_of_unshared"] = ratio([sample.times[0] for sample in samples], [each[0] for each in plain])
    if case.kind == STRUCTURED:
        figures["decode_of_plain"] = ratio(decode, [decode_rate(each) for each in plain])
    return figures


def decode_rate(times: Sequence[float]) -> float:
    """Tokens a second after the first one; of at least two."""
    return (len(times) - 1) / (times[-1] - times[0])


def _totals(case: Case, samples: Sequence[Sample]) -> list[float]:
    """Tokens of all replies a second, their prompts included in the time."""
    return [case.streams * case.tokens / sample.times[-1] for sample in samples]


def _share(about: dict[str, Any], case: Case, tokens_s: float, bandwidth: float) -> float | None:
    """Of the machine's bandwidth: what a step has to read, stored weights and the KV so far, times its rate."""
    if not about["on_host"]:
        return None
    mean_depth = case.depth + case.prompt + case.tokens / 2  # in the mean of the steps
    return tokens_s * (about["step_bytes"] + (about["kv_bytes_per_token"] or 0) * mean_depth) / bandwidth
