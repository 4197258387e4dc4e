"""`embedllm bench` without engines: its numbers, workloads, specs, order of turns, counters and report."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends.system.hardware import processor
from embedllm.loading.resolve import package_folder
from embedllm.package.package import WEIGHTS, Package
from embedllm.profiling.bench import specs
from embedllm.profiling.bench.bandwidth import Reader
from embedllm.profiling.bench.energy import Meter, open_meter
from embedllm.profiling.bench.machine import describe_machine
from embedllm.profiling.bench.numbers import latencies, percentile, ratio, spread
from embedllm.profiling.bench.peers import shared_start
from embedllm.profiling.bench.report import report
from embedllm.profiling.bench.rounds import Plan, measure
from embedllm.profiling.bench.specs import Spec, against_spec, own_spec
from embedllm.profiling.bench.workload import CONCURRENT, REPLY, SHARED, STRUCTURED, Prompts, Workload

# --- numbers


def test_percentiles_lie_between_their_neighbours() -> None:
    values = [40.0, 10.0, 30.0, 20.0]  # places 0 to 3
    assert [percentile(values, percent) for percent in (0, 50, 90, 100)] == [10.0, 25.0, pytest.approx(37.0), 40.0]
    assert latencies([float(number) for number in range(101)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert latencies([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0}


def test_a_spread_is_median_least_and_most() -> None:
    assert spread([3.0, 1.0, 8.0, 4.0]) == {"median": 3.5, "least": 1.0, "most": 8.0}


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    assert ratio([2.0, 30.0, 5.0], [1.0, 10.0, 10.0]) == 2.0  # 2, 3 and 0.5; of the medians it would be 0.5
    with pytest.raises(ValueError, match="argument"):
        ratio([1.0], [1.0, 2.0])


# --- workloads and prompts


def test_a_workload_is_all_prompts_at_all_depths_and_what_is_asked_for_besides() -> None:
    plain = Workload(prompts=(8, 32), depths=(0, 100), tokens=5)
    assert [(case.kind, case.depth, case.prompt) for case in plain.cases] == [
        (REPLY, 0, 8), (REPLY, 0, 32), (REPLY, 100, 8), (REPLY, 100, 32),
    ]  # fmt: skip
    assert plain.capacity == 100 + 32 + 5
    more = replace(plain, shared_prefix=True, structured=True, concurrency=(1, 4))
    assert [case.kind for case in more.cases[4:]] == [SHARED, STRUCTURED, CONCURRENT, CONCURRENT]
    assert more.cases[4].depth == 32  # the longest prompt is what is shared


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompts": (0,)}, "--prompt has 0; expected 1 or more"),
        ({"depths": (-1,)}, "--depth has -1; expected 0 or more"),
        ({"tokens": 1}, "--tokens has 1; expected 2 or more"),
        ({"rounds": 0}, "--rounds has 0"),
        ({"concurrency": (0,)}, "--concurrency has 0"),
        ({"prompts": (8, 8)}, "--prompt names a number twice: 8,8"),
        ({"prompts": ()}, "expected at least one of each"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Workload(**options)


@given(st.integers(2, 400), st.lists(st.integers(1, 30), min_size=2, max_size=30))
def test_no_prompt_begins_as_the_one_before(vocabulary: int, lengths: list[int]) -> None:
    prompts = Prompts(vocabulary)
    drawn = [prompts.fresh(length) for length in lengths]
    assert [len(tokens) for tokens in drawn] == lengths
    assert all(0 <= token < vocabulary for tokens in drawn for token in tokens)
    firsts = [tokens[0] for tokens in drawn]
    span = firsts[:vocabulary]
    assert len(set(span)) == len(span)
    again = Prompts(vocabulary)
    assert [again.fresh(length) for length in lengths] == drawn


def test_what_is_held_is_never_the_whole_prompt() -> None:
    assert shared_start([1, 2, 3, 4], [1, 2, 9]) == 2
    assert shared_start([1, 2, 3], [1, 2, 3]) == 2
    assert shared_start([], [5]) == 0
    assert shared_start([7], [5, 6]) == 0


# --- which engines

OWN = Spec(engine=specs.OURS, path="/own", label="embedllm /own")


def test_an_engine_that_is_not_installed_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for engine, peer in specs.PEERS.items():
        with pytest.raises(ValueError, match=f"'{engine}' is not installed.*{peer.install}"):
            against_spec(engine, OWN)


def test_what_against_names_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    (tmp_path / "model.gguf").touch()
    demo = str(package_folder("demo"))
    found = [
        against_spec(text, OWN)
        for text in ("onnxruntime-genai", f"openvino-genai:{tmp_path}", f"llama-cpp:{tmp_path}/model.gguf", "demo",
                     f"{demo}@openvino+cpu")
    ]  # fmt: skip
    assert [(spec.engine, spec.path, spec.device) for spec in found] == [
        ("onnxruntime-genai", "/own", ""),
        ("openvino-genai", str(tmp_path), ""),
        ("llama-cpp", f"{tmp_path}/model.gguf", ""),
        ("embedllm", demo, ""),
        ("embedllm", demo, "openvino+cpu"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama-cpp", r"does not say what to run; expected llama-cpp:FILE.gguf"),
        ("transformers:/nowhere", "there is no '/nowhere'; expected transformers:FOLDER"),
        ("vllm", "no such folder, nor an engine of that name"),
    ],
)
def test_what_cannot_be_compared_is_refused(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match=said):
        against_spec(text, OWN)


# --- the turns


class Scripted:
    """An engine that is told how fast it is, and writes down when it is asked what."""

    log: list[tuple[str, str, tuple[int, ...], int]]

    def __init__(self, spec: Spec, log: list[Any], *, step_s: float, **about: object) -> None:
        self.spec, self.log, self.step_s = spec, log, step_s
        self.about = {"vocabulary": 50, "context": 1000, "can": (), "keeps": True, "on_host": True,
                      "step_bytes": 900, "kv_bytes_per_token": 2.0, **about}  # fmt: skip

    def opened(self) -> dict[str, Any]:
        self.log.append((self.spec.label, "open", (), 0))
        return {"about": self.about, "load_s": 1.5, "start_s": 2.5, "peak_bytes": 10, "private_bytes": 5}

    def run(self, tokens: Sequence[int], count: int, *, do: str = "run") -> dict[str, Any]:
        self.log.append((self.spec.label, do, tuple(tokens), count))
        times = [0.5 + self.step_s * number for number in range(count)]
        return {"times": times, "joules": 3.0, "peak_bytes": 20, "private_bytes": 8}

    def batch(self, prompts: Sequence[Sequence[int]], count: int) -> dict[str, Any]:
        self.log.append((self.spec.label, "batch", tuple(prompt[0] for prompt in prompts), count))
        return {"times": [2.0], "joules": None, "peak_bytes": 30, "private_bytes": 9}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append((self.spec.label, "close", (), 0))


A, B = replace(OWN, label="A"), Spec(engine="other", path="x", label="B")


def measured(workload: Workload, **about: object) -> tuple[list[Any], dict[str, Any]]:
    """The log of two scripted engines, B twice as fast and `about` as told, and the report."""
    log: list[Any] = []
    plan = Plan(workload=workload, threads=2, pause_s=0)

    def opener(spec: Spec, plan: Plan) -> Scripted:
        if spec == A:
            return Scripted(spec, log, step_s=0.1, can=(STRUCTURED, CONCURRENT))
        return Scripted(spec, log, step_s=0.05, **about)

    found, rates = measure([A, B], plan, bandwidth=lambda: 10_000.0, opener=opener)
    machine: dict[str, object] = {"cpu": "x"}
    return log, report(found, plan, machine=machine, rates=rates, read_threads=2, energy="")


def test_engines_take_turns_in_every_round_with_the_same_prompts() -> None:
    log, _ = measured(Workload(prompts=(4, 6), tokens=3, rounds=2))
    assert [entry[:2] for entry in log[:4]] == [("A", "open"), ("B", "open"), ("A", "run"), ("B", "run")]  # warm-up
    turns = [entry for entry in log[4:] if entry[1] == "run"]
    assert [who for who, *_ in turns] == ["A", "B"] * 4  # two cases, two rounds
    assert [len(tokens) for _, _, tokens, _ in turns] == [4, 4, 6, 6] * 2
    assert all(mine[2:] == theirs[2:] for mine, theirs in zip(turns[::2], turns[1::2], strict=True))
    firsts = [entry[2][0] for entry in log[2:] if entry[1] == "run"][::2]
    assert len(set(firsts)) == len(firsts)
    assert [entry[:2] for entry in log[-2:]] == [("B", "close"), ("A", "close")]


def test_a_depth_is_read_first_and_a_shared_prefix_by_another_prompt() -> None:
    log, _ = measured(Workload(prompts=(4,), depths=(7,), tokens=3, rounds=1, shared_prefix=True))
    mine = [entry for entry in log if entry[0] == "A" and entry[1] == "run"][1:]
    held, whole, plain, other, shared = mine
    assert (len(held[2]), held[3]) == (7, 1)
    assert (whole[2][:7], len(whole[2]), whole[3]) == (held[2], 11, 3)
    assert plain[2][0] != shared[2][0]
    assert other[2][:4] == shared[2][:4]
    assert len(plain[2]) == len(shared[2])


def test_cold_rounds_come_last_each_in_a_process_of_its_own() -> None:
    log, found = measured(Workload(prompts=(4,), tokens=3, rounds=2, cold=True))
    cold = [entry[:2] for entry in log[-12:]]
    assert cold == [(who, what) for who in "ABAB" for what in ("open", "run", "close")]
    assert found["engines"][0]["cold"]["first_token_s"] == {"median": 0.5, "least": 0.5, "most": 0.5}


def test_what_an_engine_cannot_do_is_said_and_not_run() -> None:
    workload = Workload(prompts=(4,), depths=(0, 7), tokens=3, rounds=1, structured=True, concurrency=(2,))
    log, found = measured(workload, keeps=False)
    assert {entry[1] for entry in log if entry[0] == "B"} == {"open", "run", "close"}
    assert [len(entry[2]) for entry in log if entry[0] == "B" and entry[1] == "run"] == [4, 4]
    other = found["engines"][1]
    assert [(case["kind"], case["depth"]) for case in other["not_measured"]] == [
        (REPLY, 7), (STRUCTURED, 0), (CONCURRENT, 0),
    ]  # fmt: skip
    assert [case["kind"] for case in found["engines"][0]["cases"]] == [REPLY, REPLY, STRUCTURED, CONCURRENT]


def test_a_workload_longer_than_a_context_is_refused_before_anything_runs() -> None:
    log: list[Any] = []
    plan = Plan(workload=Workload(prompts=(900,), tokens=101), threads=1)
    with pytest.raises(ValueError, match="'A' holds 1000 tokens; this workload needs 1001"):
        measure([A], plan, bandwidth=lambda: 1.0, opener=lambda spec, plan: Scripted(spec, log, step_s=1.0))
    assert [entry[1] for entry in log] == ["open", "close"]


def test_the_report_has_the_numbers_of_a_hand() -> None:
    _, found = measured(Workload(prompts=(4,), tokens=3, rounds=2, concurrency=(2,)))
    first, second = found["engines"]
    reply, several = first["cases"]
    assert reply["first_token_s"] == {"median": 0.5, "least": 0.5, "most": 0.5}
    assert reply["prefill_tokens_s"]["median"] == 8.0  # 4 tokens in 0.5 s
    assert reply["decode_tokens_s"]["median"] == pytest.approx(10.0)  # a step is 0.1 s
    assert reply["token_s"] == {name: pytest.approx(0.1) for name in ("p50", "p95", "p99")}
    assert reply["bandwidth_share"] == pytest.approx(10 * (900 + 2 * (4 + 1.5)) / 10_000)
    assert reply["joules_per_token"]["median"] == 1.0  # 3 joules, 3 tokens
    assert several["tokens_s"]["median"] == 3.0  # 2 replies of 3 tokens in 2 s
    assert second["cases"][0]["decode_of_first"] == pytest.approx(2.0)
    assert second["cases"][0]["prefill_of_first"] == 1.0
    assert (first["peak_bytes"], first["loaded_peak_bytes"], second["private_bytes"]) == (30, 10, 8)
    json.dumps(found, allow_nan=False)


# --- the machine


def write_domain(root: Path, name: str, microjoules: int, size: int) -> Path:
    domain = root / name
    domain.mkdir(parents=True)
    (domain / "energy_uj").write_text(f"{microjoules}\n")
    (domain / "max_energy_range_uj").write_text(f"{size}\n")
    return domain


def test_energy_is_that_of_all_packages_over_the_end_of_a_counter(tmp_path: Path) -> None:
    first = write_domain(tmp_path, "intel-rapl:0", 1_000_000, 9_999_999)
    write_domain(tmp_path, "intel-rapl:0:0", 5, 9)  # a part of the first one
    second = write_domain(tmp_path, "intel-rapl:1", 9_000_000, 9_999_999)
    meter = open_meter(tmp_path)
    assert isinstance(meter, Meter)
    before = meter.read()
    (first / "energy_uj").write_text("3500000\n")
    (second / "energy_uj").write_text("500000\n")  # it turned: 1.5 J later
    assert meter.joules(before, meter.read()) == pytest.approx(2.5 + 1.5)


def test_why_there_is_no_energy_is_told(tmp_path: Path) -> None:
    assert "no energy counters" in str(open_meter(tmp_path / "none"))
    assert "no energy counters" in str(open_meter(tmp_path))
    (tmp_path / "intel-rapl:0").mkdir()  # without its files
    assert "cannot be read" in str(open_meter(tmp_path))


def test_the_processor_is_named_by_itself(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n")
    assert processor(tmp_path / "cpuinfo") == "Some CPU @ 3 GHz"
    assert processor(tmp_path / "none")
    machine = describe_machine()
    assert int(str(machine["processors"])) >= int(str(machine["usable_processors"])) >= 1


PEAK = """
from embedllm.profiling.bench.memory import peak_bytes, private_bytes
before = peak_bytes()
taken = b"x" * (64 << 20)
print(peak_bytes() - before, private_bytes() or 64 << 20)
"""


def test_memory_that_was_taken_is_in_the_peak() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert all(64 << 20 <= int(count) < 128 << 20 for count in done.stdout.split())


def test_the_reader_reads_all_of_its_memory_in_as_many_parts_as_threads() -> None:
    reader = Reader(3, size=1 << 20)
    assert reader.rate() > 0
    assert [part.nbytes for part in reader._parts] == [349528, 349524, 349524]


def test_weights_that_a_step_reads_are_all_but_tables() -> None:
    from embedllm.package.package import open_package
    from embedllm.profiling.bench.ours import step_bytes

    package = open_package(own_spec("demo").path)
    tables = 2 * 262_144  # of the demo's rotary positions
    assert (
        package.files[WEIGHTS].bytes - tables - (64 << 10) < step_bytes(package) < package.files[WEIGHTS].bytes - tables
    )


def test_of_a_mixture_a_step_reads_as_many_experts_as_a_token_has(tmp_path: Path) -> None:
    """All else alike, one expert more of a token is one expert's bytes more."""
    from embedllm.export import Recipe
    from embedllm.files.safetensors_header import read_header
    from embedllm.package.package import open_package
    from embedllm.profiling.bench.ours import step_bytes
    from tests.support.decoder_cases import mixtures, plain
    from tests.support.described import described_package

    def package(used: int) -> Package:
        decoder = mixtures(used=used)(plain())
        return open_package(described_package(tmp_path / str(used), decoder, Recipe(), variant="openvino"))

    two, three, all_six = (step_bytes(package(used)) for used in (2, 3, 6))
    tensors = read_header(package(5).weights).tensors
    of_one = sum(tensor.length for name, tensor in tensors.items() if ".mlp.experts.0." in name)
    assert of_one > 0
    assert three - two == of_one
    assert all_six - two == 4 * of_one
    assert all_six < sum(tensor.length for tensor in tensors.values())
