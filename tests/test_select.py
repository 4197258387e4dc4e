"""Which device is chosen and why, and how many threads suit a machine: on devices and machines that are made up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from embedllm import backends
from embedllm.backends import registry, select, threads
from embedllm.backends.base import Device
from embedllm.backends.select import Choice, choose
from embedllm.backends.threads import compute_threads
from embedllm.errors import DeviceUnavailable


def device(name: str, *, reason: str = "", remedy: str = "", backend: str = "runtime 1") -> Device:
    return Device(name=name, backend=backend, description="", available=not reason, reason=reason, remedy=remedy)


CPU = device("cpu")
CUDA = device("cuda", reason="no GPU was found", remedy="pip install embedllm[cuda]")
NPU = device("npu", reason="not driven yet")
REFERENCE = device("reference", backend="numpy 2")
ALL = (CPU, CUDA, NPU, REFERENCE)

# --- choose


@pytest.mark.parametrize(
    ("wish", "name", "passed_over"),
    [
        ("auto", "cpu", ()),
        ("cpu", "cpu", ()),
        ("reference", "reference", ()),
        (["reference", "cpu"], "reference", ()),
        (["cuda", "cpu"], "cpu", (("cuda", "no GPU was found"),)),
        (("cuda", "npu", "auto"), "cpu", (("cuda", "no GPU was found"), ("npu", "not driven yet"))),
        (["tpu", "reference"], "reference", (("tpu", "not found by runtime 1 or numpy 2"),)),
    ],
)
def test_the_first_available_device_of_the_wish_is_chosen(
    wish: str | Sequence[str], name: str, passed_over: tuple[tuple[str, str], ...]
) -> None:
    choice = choose(ALL, wish)
    assert choice == Choice(next(one for one in ALL if one.name == name), passed_over)


@pytest.mark.parametrize("devices", [ALL, ALL[::-1]])
def test_the_order_of_the_devices_does_not_matter(devices: Sequence[Device]) -> None:
    assert choose(devices, "auto").device == CPU


def test_an_explicit_device_never_falls_back() -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        choose(ALL, "cuda")
    assert caught.value.tried == (("cuda", "no GPU was found", "pip install embedllm[cuda]"),)
    assert str(caught.value) == (
        "no device can run this model. Tried 'cuda': no GPU was found (pip install embedllm[cuda])."
    )


def test_auto_never_takes_a_device_that_is_there_to_check_others() -> None:
    broken = device("cpu", reason="ONNX Runtime cannot be imported", remedy="pip install onnxruntime")
    with pytest.raises(DeviceUnavailable) as caught:
        choose([broken, REFERENCE], "auto")
    assert caught.value.tried == (("cpu", broken.reason, broken.remedy),)


def test_a_refusal_lists_each_device_that_was_tried() -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        choose(ALL, ["cuda", "tpu", "npu"])
    assert caught.value.tried == (
        ("cuda", "no GPU was found", "pip install embedllm[cuda]"),
        ("tpu", "not found by runtime 1 or numpy 2", "available: 'cpu', 'reference'"),
        ("npu", "not driven yet", ""),
    )


def test_without_any_backend_the_error_says_so() -> None:
    with pytest.raises(DeviceUnavailable, match="not found by any backend"):
        choose([], "auto")


@pytest.mark.parametrize("wish", ["", [], [""], ["cpu", ""], [None], [3]])
def test_an_empty_wish_is_a_slip_of_the_caller(wish: str | Sequence[str]) -> None:
    with pytest.raises(ValueError, match="expected a name such as 'cpu', 'auto', or a list of names"):
        choose(ALL, wish)


def test_every_ranked_device_may_be_found_here() -> None:
    assert set(select._RANKING) <= {found.name for found in registry.devices()}


# --- the devices of this machine


def test_names_are_unique_and_what_is_not_available_says_why() -> None:
    found = registry.devices()
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert one.backend
        assert one.available != bool(one.reason)
    assert {one.name for one in found if one.available} >= {"cpu", "reference"}


def test_without_onnxruntime_the_cpu_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(backends, "ort", raising=False)
    monkeypatch.delitem(sys.modules, "embedllm.backends.ort", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (cpu,) = (one for one in registry.devices() if one.name == "cpu")
    assert not cpu.available
    assert cpu.reason.startswith("ONNX Runtime cannot be imported (")
    assert cpu.remedy == "pip install onnxruntime"


# --- threads


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes up a machine.

    cores: the core of each processor, by any name, in the order of their numbers. usable: the processors that this
    process may use, all if None. quota: the content of cpu.max.
    """

    def make(
        cores: Sequence[tuple[int, ...]], *, usable: Sequence[int] | None = None, quota: str | None = None
    ) -> None:
        for cpu, core in enumerate(cores):
            topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            siblings = [str(other) for other, its in enumerate(cores) if its == core]
            (topology / "thread_siblings_list").write_text(",".join(siblings) + "\n")
            (topology / "physical_package_id").write_text(f"{core[0]}\n")
            (topology / "core_id").write_text(f"{core[-1]}\n")
        if quota is not None:
            (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
            (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota)
        monkeypatch.setattr(threads, "Path", lambda path: tmp_path / str(path).lstrip("/"))
        allowed = set(range(len(cores)) if usable is None else usable)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: allowed, raising=False)

    return make


FOUR_CORES = [(0, core) for core in range(4)]


@pytest.mark.parametrize(
    ("cores", "usable", "quota", "expected"),
    [
        (FOUR_CORES, None, None, 4),
        (FOUR_CORES * 2, None, None, 4),  # hyper-threads numbered after the cores, as on most machines
        ([core for core in FOUR_CORES for _ in range(2)], None, None, 4),  # or beside them
        ([(package, core) for package in range(2) for core in range(4)] * 2, None, None, 8),  # two sockets
        (FOUR_CORES * 2, [0, 4], None, 1),  # two threads of one core
        (FOUR_CORES * 2, [0, 1, 4], None, 2),
        (FOUR_CORES * 2, None, "200000 100000\n", 2),
        (FOUR_CORES * 2, None, "150000 100000\n", 2),
        (FOUR_CORES * 2, None, "10000 100000\n", 1),
        (FOUR_CORES * 2, None, "1600000 100000\n", 4),
        (FOUR_CORES * 2, None, "max 100000\n", 4),
        (FOUR_CORES * 2, [1], "200000 100000\n", 1),
        (FOUR_CORES, None, "", 4),
        ([(0, core // 2) for core in range(8)] + [(0, 4 + core) for core in range(4)], None, None, 8),  # P and E cores
        # ARM by a device tree: package, cluster, core; core_id begins anew in each cluster
        ([(0, cluster, core) for cluster in range(2) for core in range(4)], None, None, 8),
    ],
)
def test_threads_are_the_physical_cores_that_may_be_used(
    machine: Callable[..., None],
    cores: Sequence[tuple[int, ...]],
    usable: Sequence[int] | None,
    quota: str | None,
    expected: int,
) -> None:
    machine(cores, usable=usable, quota=quota)
    assert compute_threads() == expected


def test_without_topology_the_runtime_counts_but_a_quota_holds(machine: Callable[..., None]) -> None:
    machine([], usable=range(8))
    assert compute_threads() == 0


def test_without_topology_a_quota_bounds_the_threads(machine: Callable[..., None]) -> None:
    machine([], usable=range(8), quota="300000 100000\n")
    assert compute_threads() == 3


def test_without_affinity_the_runtime_counts(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(FOUR_CORES)
    monkeypatch.delattr("os.sched_getaffinity")  # Windows, macOS
    assert compute_threads() == 0
