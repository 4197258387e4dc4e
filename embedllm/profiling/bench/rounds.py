"""The measurement: opens every engine, then runs them in turn in each round, never two simultaneously."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from embedllm.profiling.bench.process import Process
from embedllm.profiling.bench.specs import Spec
from embedllm.profiling.bench.workload import CONCURRENT, REPLY, SHARED, STRUCTURED, Case, Prompts, Workload

_FIRST = 2  # tokens of a first reply: enough for one step behind the prompt


class Running(Protocol):
    """What `Process` is."""

    def opened(self) -> dict[str, Any]: ...
    def run(self, tokens: Sequence[int], count: int, *, do: str = "run") -> dict[str, Any]: ...
    def batch(self, prompts: Sequence[Sequence[int]], count: int) -> dict[str, Any]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """What one engine did in one case of one round."""

    times: list[float]  # seconds from the call to each token; of concurrent replies: to the end of all
    joules: float | None
    plain: list[float] | None = None  # the same without what the case is about: a shared prefix, a schema


@dataclass(slots=True)
class Findings:
    """What was found of one engine."""

    spec: Spec
    about: dict[str, Any]
    opened: dict[str, Any]  # load_s, start_s, peak_bytes, private_bytes
    first: list[float] = field(default_factory=list)  # times of the first reply after loading
    samples: dict[Case, list[Sample]] = field(default_factory=dict)
    cold: list[dict[str, float]] = field(default_factory=list)  # of fresh processes: load_s, start_s, first_token_s
    peak_bytes: int = 0  # after all cases
    private_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of all engines."""

    workload: Workload
    threads: int  # 0: each engine's own choice
    exact: bool = False  # of ours
    prefix_cache: bool = True  # of ours: as load() has it, else none
    pause_s: float = 0.05  # before a turn: threads of the engine before it, which wait for work, spin for a while


Open = Callable[[Spec, Plan], Running]
OnStep = Callable[[str], None]


def start(spec: Spec, plan: Plan) -> Running:
    """A process for an engine."""
    return Process(spec, threads=plan.threads, capacity=plan.workload.capacity, exact=plan.exact,
                   prefix_cache=plan.prefix_cache)  # fmt: skip


def measure(
    specs: Sequence[Spec],
    plan: Plan,
    *,
    bandwidth: Callable[[], float],
    on_step: OnStep = lambda text: None,
    opener: Open = start,
) -> tuple[list[Findings], list[float]]:
    """Findings in the order of the engines, and the memory bandwidth before each round, bytes a second.

    bandwidth: measures it. on_step: called with each step's name. Raises EmbedError when an engine fails, and
    ValueError when a workload does not fit into a model's context.
    """
    with ExitStack() as processes:
        running: list[tuple[Running, Findings]] = []
        for spec in specs:  # one after the other: loads are timed too
            on_step(f"load {spec.label}")
            process = processes.enter_context(opener(spec, plan))
            opened = process.opened()
            about = opened.pop("about")
            _check(spec, about, plan.workload)
            running.append((process, Findings(spec, about, opened, peak_bytes=opened["peak_bytes"])))
        prompts = Prompts(min(findings.about["vocabulary"] for _, findings in running))
        _warm_up(running, plan.workload, prompts, on_step)
        rates = []
        for number in range(plan.workload.rounds):
            rates.append(bandwidth())
            _round(running, plan, prompts, lambda text, number=number: on_step(f"round {number + 1}: {text}"))
    all_findings = [findings for _, findings in running]
    if plan.workload.cold:
        _cold(all_findings, plan, prompts, on_step, opener)
    return all_findings, rates


def can_run(about: dict[str, Any], case: Case) -> bool:
    """Whether an engine has what a case needs."""
    if case.kind in (STRUCTURED, CONCURRENT):
        return case.kind in about["can"]
    return bool(about["keeps"]) or (case.kind == REPLY and case.depth == 0)


def _check(spec: Spec, about: dict[str, Any], workload: Workload) -> None:
    if workload.capacity > about["context"]:
        raise ValueError(
            f"'{spec.label}' holds {about['context']} tokens; this workload needs {workload.capacity} (depth, prompt "
            "and reply of its longest case). Take a smaller --prompt, --depth or --tokens, or export with a larger "
            "--context."
        )


def _warm_up(running: list[tuple[Running, Findings]], workload: Workload, prompts: Prompts, on_step: OnStep) -> None:
    """A first reply of each, whose time is kept, and a first one under a schema, which makes the vocabulary ready."""
    first = prompts.fresh(max(workload.prompts))
    schema = prompts.fresh(max(workload.prompts)) if workload.structured else None
    for process, findings in running:
        on_step(f"first reply of {findings.spec.label}")
        findings.first = process.run(first, _FIRST)["times"]
        if schema is not None and STRUCTURED in findings.about["can"]:
            process.run(schema, _FIRST, do="structured")


def _round(running: list[tuple[Running, Findings]], plan: Plan, prompts: Prompts, on_step: OnStep) -> None:
    for case in plan.workload.cases:
        drawn = _draw(case, prompts)
        for process, findings in running:
            if not can_run(findings.about, case):
                continue
            on_step(f"{findings.spec.label}, {case.title}")
            time.sleep(plan.pause_s)
            plain, answer = _run(process, case, drawn)
            findings.samples.setdefault(case, []).append(Sample(answer["times"], answer["joules"], plain))
            findings.peak_bytes, findings.private_bytes = answer["peak_bytes"], answer["private_bytes"]


def _draw(case: Case, prompts: Prompts) -> list[list[int]]:
    """The prompts of a case, the same for every engine."""
    length = case.depth + case.prompt
    if case.kind == SHARED:
        first = prompts.fresh(length)
        return [prompts.fresh(length), first, first[: case.depth] + prompts.more(case.prompt)]
    if case.kind == STRUCTURED:
        return [prompts.fresh(length), prompts.fresh(length)]
    return [prompts.fresh(length) for _ in range(case.streams)]


def _run(process: Running, case: Case, drawn: list[list[int]]) -> tuple[list[float] | None, dict[str, Any]]:
    """What the case is compared with, if anything, and what was found."""
    if case.kind == CONCURRENT:
        return None, process.batch(drawn, case.tokens)
    if case.kind == STRUCTURED:
        plain = process.run(drawn[0], case.tokens)["times"]
        return plain, process.run(drawn[1], case.tokens, do="structured")
    if case.kind == SHARED:
        plain = process.run(drawn[0], case.tokens)["times"]
        process.run(drawn[1], _FIRST)
        return plain, process.run(drawn[2], case.tokens)
    if case.depth:
        process.run(drawn[0][: case.depth], 1)
    return None, process.run(drawn[0], case.tokens)


def _cold(all_findings: list[Findings], plan: Plan, prompts: Prompts, on_step: OnStep, opener: Open) -> None:
    """Rounds in which each engine is a fresh process that makes one reply, when all the others have ended."""
    for number in range(plan.workload.rounds):
        prompt = prompts.fresh(min(plan.workload.prompts))
        for one in all_findings:
            on_step(f"cold round {number + 1}: {one.spec.label}")
            with opener(one.spec, plan) as process:
                opened = process.opened()
                times = process.run(prompt, _FIRST)["times"]
            one.cold.append(
                {"load_s": opened["load_s"], "start_s": opened["start_s"], "first_token_s": times[0],
                 "peak_bytes": opened["peak_bytes"]}
            )  # fmt: skip
