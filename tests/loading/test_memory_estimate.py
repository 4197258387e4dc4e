"""What a model is expected to need: the numbers of each device, what is free, and loads that are refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import embedllm
from embedllm.backends.base import Device
from embedllm.backends.devices import drivers
from embedllm.backends.devices.registry import DeviceCatalog
from embedllm.backends.gpu.state_pool import SIDES
from embedllm.backends.gpu.webgpu_batch import WIDTHS
from embedllm.backends.gpu.webgpu_batch_limits import WEBGPU_BATCHES
from embedllm.backends.gpu.webgpu_states import PLACES, PLACES_OF_BATCH
from embedllm.backends.needed_memory import MemoryEstimate
from embedllm.backends.openvino import engine as ov
from embedllm.backends.ort import engine as ort
from embedllm.backends.ort.batch import MAX_BATCH
from embedllm.cli.main import cli
from embedllm.errors import DeviceUnavailable
from embedllm.export import Recipe, convert
from embedllm.files import free_memory
from embedllm.loading import memory_estimate as fitting
from embedllm.loading.memory_estimate import estimate_memory, shortfall
from embedllm.package.package import Package, open_package
from embedllm.package.recurrent_state import state_bytes
from embedllm.package.tensors import kv_bytes
from tests.benchmarks.bench_memory import in_fresh_process
from tests.support.tiny import tiny_checkpoint
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_qwen3_5

DEMO = Path(embedllm.__file__).parent / "demo"
TOLERANCE = 0.2  # of what was measured, and as many bytes as allocators differ by: docs/performance.md#memory
SLACK = 12 << 20  # bytes
MIB = 1 << 20


@pytest.fixture(scope="module")
def demo() -> Package:
    return open_package(DEMO, whole=False)


def device(package: Package, name: str) -> Device:
    return next(one for one in DeviceCatalog(package).lookup(name) if one.name == name)


def have(monkeypatch: pytest.MonkeyPatch, free: int | None) -> None:
    monkeypatch.setattr(fitting, "free_bytes", lambda: free)


# --- against what a process takes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "prompt"), [("cpu", 1), ("cpu", 600), ("openvino", 1), ("openvino", 600)])
def test_a_process_takes_what_is_expected(name: str, prompt: int) -> None:
    found = in_fresh_process(str(DEMO), name, prompt)
    off = found["expected_bytes"] - found["measured_bytes"]
    assert abs(off) <= TOLERANCE * found["measured_bytes"] + SLACK, found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_tiny_model_is_mostly_the_runtime(tiny_package: Callable[..., Path]) -> None:
    found = in_fresh_process(str(tiny_package("llama")), "cpu", 100)
    assert abs(found["expected_bytes"] - found["measured_bytes"]) <= 20 * MIB, found


# --- the numbers


def test_chunks_are_those_of_the_engines() -> None:
    cpu, openvino = drivers.find_family("cpu"), drivers.find_family("openvino")
    assert cpu is not None
    assert openvino is not None
    assert {one.chunk for one in cpu.capabilities.footprints.values()} == {ort.CHUNK}
    assert openvino.capabilities.footprints[False].chunk == ov.CHUNK


def test_packed_weights_by_hand(demo: Package) -> None:
    # ten layers of 512 x 512 twice, 256 x 512 twice and 1536 x 512 three times in 4 bits; a head of 16384 x 512 in 8
    layers, head = 10 * (2 * 512 + 2 * 256 + 3 * 1536) * 512, 16384 * 512
    assert (
        estimate_memory(demo, device(demo, "cpu")).weights_bytes == (layers * (4 + 3) + head * (8 + 3)) // 8 + 20 * MIB
    )


def test_kv_is_counted_in_the_type_of_the_device(demo: Package) -> None:
    cpu, openvino = (estimate_memory(demo, device(demo, name), context=1000) for name in ("cpu", "openvino"))
    assert cpu.kv_bytes == kv_bytes(demo.decoder, 1000)
    assert openvino.kv_bytes == kv_bytes(demo.decoder, 1000, 1) * 9 // 8


def test_a_quantized_kv_is_smaller_and_not_measured(demo: Package) -> None:
    cpu = device(demo, "cpu")
    small = estimate_memory(demo, cpu, context=1000, kv="int8")
    assert small.kv_bytes == kv_bytes(demo.decoder, 1000, 1) * 9 // 8
    assert (small.is_measured, estimate_memory(demo, cpu).is_measured) == (False, True)


def test_a_gpu_is_a_plain_estimate_against_its_own_memory(demo: Package) -> None:
    cuda = Device(name="cuda", backend="", description="", available=True, memory=30 * MIB)
    found = estimate_memory(demo, cuda, context=100)
    size = demo.weights.stat().st_size
    assert not found.is_measured
    assert (found.weights_bytes, found.kv_bytes) == (size, kv_bytes(demo.decoder, 100, 2))
    assert found.free_bytes == 30 * MIB
    assert found.largest_context == (30 * MIB - size) // kv_bytes(demo.decoder, 1, 2)


def test_recurrent_states_are_counted_in_as_many_places_as_a_session_has_them_in(tmp_path: Path) -> None:
    """A delta rule, whose states CUDA has in float32, and two state spaces, whose states it has in float16."""
    makers = tiny_qwen3_5, tiny_falcon_h1
    checkpoints = (make(tmp_path / str(at)) for at, make in enumerate(makers))
    delta, spaces = (open_package(convert(one, one / "package", Recipe())) for one in checkpoints)
    conv, recurrent = 3 * 80, 2 * 16 * 24
    expected = {"reference": 4 * (conv + recurrent), "cpu": 2 * 4 * (conv + recurrent),
                "cuda": 2 * (2 * conv + 4 * recurrent), "webgpu": PLACES * 2 * (conv + recurrent)}  # fmt: skip
    values = 2 * (3 * 160 + 4 * 16 * 24)
    expected_spaces = {"cuda": SIDES * 2 * values, "webgpu": PLACES * 2 * values}
    for package, of_devices in ((delta, expected), (spaces, expected_spaces)):
        for name, size in of_devices.items():
            at = Device(name=name, backend="", description="", available=True)
            kv = kv_bytes(package.decoder, 100, 2 if name in ("cuda", "webgpu") else 4)
            assert estimate_memory(package, at, context=100).kv_bytes == kv + size, name


def test_the_batches_of_webgpu_are_counted_as_far_as_there_is_room_for_them(demo: Package) -> None:
    size, row = demo.weights.stat().st_size, kv_bytes(demo.decoder, 100, 2)

    def estimate(memory: int, **options: bool) -> MemoryEstimate:
        webgpu = Device(name="webgpu", backend="", description="", available=True, memory=memory)
        return estimate_memory(demo, webgpu, context=100, **options)  # type: ignore[arg-type]  # exact

    assert estimate(1 << 30).batch_bytes == 16 * row
    assert estimate(0).batch_bytes == 16 * row  # the memory is not told
    assert estimate(1 << 30).needed_bytes == size + 17 * row
    assert estimate(1 << 30).kv_tokens == ((1 << 30) - size - 16 * row) * 100 // row
    assert (estimate(size + 3 * row).batch_bytes, estimate(size + 3 * row).fits) == (2 * row, True)
    assert (estimate(size).batch_bytes, estimate(size).fits) == (0, False)
    assert estimate(1 << 30, exact=True).batch_bytes == 0  # sequences take turns
    assert WEBGPU_BATCHES.most_bytes(4 << 30) == 1 << 30
    assert WEBGPU_BATCHES.most_bytes(16 << 30) == 2 << 30
    assert (WEBGPU_BATCHES.rows, WEBGPU_BATCHES.state_places) == (max(WIDTHS), PLACES_OF_BATCH)


def test_states_that_sequences_of_cpu_have_besides_while_they_step_together_are_counted(tmp_path: Path) -> None:
    package = open_package(convert(tiny_qwen3_5(tmp_path / "checkpoint"), tmp_path / "package", Recipe()))
    cpu = device(package, "cpu")
    estimate = estimate_memory(package, cpu)
    assert estimate.kv_bytes == kv_bytes(package.decoder, package.context, 4) + 2 * state_bytes(package.decoder)
    assert estimate_memory(package, cpu, exact=True).batch_bytes == 0, "they take turns"
    with embedllm.load(package.folder, device="cpu") as llm:
        llm.generate_batch([[5, 6, seed] for seed in range(MAX_BATCH)], temperature=0, max_tokens=3, stop_tokens=())
        engine = llm.runner.engine
        assert isinstance(engine, ort.OrtEngine)
        (batch,) = engine._batches
        held = sum(array.nbytes for side in batch._states._sides for array in side.values())
    assert estimate.batch_bytes == held == 2 * MAX_BATCH * state_bytes(package.decoder)


def test_a_pair_holds_the_weights_twice_and_the_kv_once(demo: Package) -> None:
    cpu, openvino, both = (estimate_memory(demo, device(demo, name)) for name in ("cpu", "openvino", "openvino+cpu"))
    assert both.weights_bytes == cpu.weights_bytes + openvino.weights_bytes
    assert both.kv_bytes == cpu.kv_bytes


@pytest.mark.parametrize("name", ["cpu", "openvino"])
def test_the_largest_context_fits_and_the_next_does_not(
    demo: Package, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, 95 * MIB)
    largest = estimate_memory(demo, device(demo, name)).largest_context
    assert largest is not None
    assert 256 < largest < 2048
    assert estimate_memory(demo, device(demo, name), context=largest).fits
    assert not estimate_memory(demo, device(demo, name), context=largest + 1).fits


@pytest.mark.parametrize("context", [0, 2049])
def test_a_context_that_the_package_cannot_hold(demo: Package, context: int) -> None:
    with pytest.raises(ValueError, match=f"context is {context} tokens; expected 1 to 2048"):
        estimate_memory(demo, device(demo, "cpu"), context=context)


# --- what is free


def test_a_container_is_asked_in_both_versions(tmp_path: Path) -> None:
    new, old = tmp_path / "outer", tmp_path / "memory" / "job"
    for folder, files in (
        (new, {"memory.max": "1000", "memory.current": "700", "memory.stat": "inactive_file 50\nactive_file 1"}),
        (new / "inner", {"memory.max": "max", "memory.current": "7", "memory.stat": ""}),
        (
            old,
            {
                "memory.limit_in_bytes": "500",
                "memory.usage_in_bytes": "600",
                "memory.stat": "inactive_file 9\ntotal_inactive_file 120",
            },
        ),
    ):
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
    lines = tmp_path / "cgroup"
    lines.write_text("4:memory:/job\n3:cpuset:/outer\n0::/outer/inner\n")
    assert sorted(free_memory._left_in_groups(tmp_path, lines)) == [20, 351]
    assert list(free_memory._left_in_groups(tmp_path, tmp_path / "none")) == []


def test_without_psutil_nothing_is_told_and_nothing_refused(demo: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    found = estimate_memory(demo, device(demo, "cpu"))
    assert (found.free_bytes, found.largest_context, found.fits) == (None, None, None)
    assert shortfall(demo, device(demo, "cpu")) is None


def test_here_something_is_free() -> None:
    free = free_memory.free_bytes()
    assert free is not None
    assert free > 0


# --- loading


def test_a_load_that_cannot_fit_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 50 * MIB)
    numbers = r"'cpu': it has too little memory: 'demo' needs about \d+ MiB for 256 tokens \(weights 57 MiB, KV 5 MiB,"
    with pytest.raises(DeviceUnavailable, match=numbers) as caught:
        embedllm.load("demo", device="cpu")
    assert "50 MiB are free" in str(caught.value)
    assert "EMBEDLLM_FIT=off" in str(caught.value)
    monkeypatch.setenv("EMBEDLLM_FIT", "OFF ")
    with embedllm.load("demo", device="cpu") as model:
        assert model.memory is not None
        assert model.memory.fits is False
        assert model.memory.largest_context == 0


def test_two_copies_that_do_not_fit_are_refused_and_the_next_device_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 100 * MIB)
    with pytest.raises(DeviceUnavailable, match="100 MiB are free"):
        embedllm.load("demo", device="openvino+cpu")
    with embedllm.load("demo", device=["openvino+cpu", "cpu"]) as model:
        assert model.device.name == "cpu"


def test_what_fits_in_part_is_loaded_and_says_how_much(demo: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 95 * MIB)
    with embedllm.load("demo", device="cpu") as model:
        assert model.memory == estimate_memory(demo, device(demo, "cpu"))
        assert model.memory is not None
        assert (model.memory.context, model.memory.fits) == (2048, False)


# --- the command


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["fit", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_lists_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 95 * MIB)
    lines = {line.split()[0]: line for line in run("demo").splitlines()[1:]}
    assert {"cpu", "openvino", "reference"} <= lines.keys()
    assert "~" not in lines["cpu"]
    assert "does not fit" in lines["reference"]


def test_the_command_as_json(demo: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 95 * MIB)
    (found,) = json.loads(run("demo", "--device", "cpu", "--context", "2000", "--json"))
    expected = estimate_memory(demo, device(demo, "cpu"), context=2000)
    assert found["needed_bytes"] == expected.needed_bytes
    assert (found["fits"], found["largest_context"]) == (False, expected.largest_context)


def test_a_checkpoint_is_estimated_as_its_export_and_not_exported(
    tmp_path: Path, tiny_package: Callable[..., Path], cache: Path
) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    options = ("--device", "cpu", "--json")
    (exported,), (found,) = (json.loads(run(str(one), *options)) for one in (tiny_package("llama"), checkpoint))
    assert (found["context"], found["weights_bytes"]) == (exported["context"], exported["weights_bytes"])
    assert not (cache / "exports").exists()


def test_a_device_that_is_not_there_is_an_error() -> None:
    done = CliRunner().invoke(cli, ["fit", "demo", "--device", "nonsense"])
    assert (done.exit_code, done.stdout) == (1, "")
