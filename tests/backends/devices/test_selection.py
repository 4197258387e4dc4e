"""Which device is chosen and why, and how many threads suit a machine: on devices and machines that are made up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends import ort
from embedllm.backends.base import Device
from embedllm.backends.devices import registry
from embedllm.backends.devices.drivers import find_family
from embedllm.backends.devices.selection import RANKINGS, Choice, DeviceSearch, Refusal, choose, names_in, plain
from embedllm.backends.system import cpu_threads
from embedllm.backends.system.cpu_threads import compute_threads
from embedllm.errors import DeviceUnavailable
from tests.support.machines import MACHINES, Machine


def device(name: str, *, reason: str = "", remedy: str = "", backend: str = "runtime 1", words: str = "") -> Device:
    return Device(name=name, backend=backend, description=words, available=not reason, reason=reason, remedy=remedy)


CPU = device("cpu")
CUDA = device("cuda", reason="no GPU was found", remedy="pip install embedllm[cuda]")
NPU = device("npu", reason="not driven yet")
REFERENCE = device("reference", backend="numpy 2")
ALL = (CPU, CUDA, NPU, REFERENCE)
NO_CUDA = Refusal("cuda", "no GPU was found", "pip install embedllm[cuda]")
NOT_THERE = "no such device was found"

# --- machines


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_each_machine_gets_its_device_with_reasons_and_remedies(machine: Machine) -> None:
    chosen, search = _walked(machine.devices(), machine.wish, machine.system, machine.failing)
    assert (chosen.name if chosen else None) == machine.chosen
    assert tuple(refusal.device for refusal in search.rejected) == machine.passed
    for refusal in search.rejected:
        reason, remedy = machine.lack_of(refusal.device)
        assert refusal.reason.startswith(reason)
        assert remedy in refusal.remedy
    if chosen is None:
        error = search.failure()
        assert error.tried == tuple(search.rejected)
        for refusal in search.rejected:
            assert f"'{refusal.device}': {refusal.reason}" in str(error)
            assert refusal.remedy in str(error)


def test_there_are_machines_enough() -> None:
    assert len({machine.name for machine in MACHINES}) == len(MACHINES) >= 60
    assert {machine.system for machine in MACHINES} >= set(RANKINGS)


def _walked(
    devices: Sequence[Device], wish: str | Sequence[str], system: str, failing: dict[str, str]
) -> tuple[Device | None, DeviceSearch]:
    """The first device that does not fail when it is used, as load() walks."""
    search = DeviceSearch(lambda name, *, automatic: devices, wish, platform=system)
    for found in search:
        if found.name not in failing:
            return found, search
        search.refuse(found, failing[found.name])
    return None, search


FAMILIES = sorted({name for ranking in RANKINGS.values() for name in ranking} | {"npu", "reference", "openvino"})
STATES = st.sampled_from(["absent", "lacking", "failing", "software", "fine"])


@given(
    system=st.sampled_from([*RANKINGS, "freebsd14"]),
    states=st.fixed_dictionaries({name: st.lists(STATES, max_size=3) for name in FAMILIES}),
    turned=st.booleans(),
)
def test_auto_takes_the_first_of_the_ranking_that_works(
    system: str, states: dict[str, list[str]], turned: bool
) -> None:
    names = {
        f"{family}:{at}" if at else family: state
        for family, several in states.items()
        for at, state in enumerate(several)
        if state != "absent"
    }
    devices = [
        device(
            name,
            reason="lacks" if state == "lacking" else "",
            words="llvmpipe, software" if state == "software" else "",
        )
        for name, state in names.items()
    ]
    failing = {name: "fails" for name, state in names.items() if state == "failing"}
    chosen, search = _walked(devices[::-1] if turned else devices, "auto", system, failing)

    ranking = RANKINGS.get(system, ("cpu",))
    ranked = [name for family in ranking for name in names if name.partition(":")[0] == family]
    fine = [name for name in ranked if names[name] == "fine"]
    if chosen is None:
        assert fine == []
    else:
        assert chosen.name in fine
        best = ranking.index(fine[0].partition(":")[0])
        assert ranking.index(chosen.name.partition(":")[0]) == best
    reasons = {"lacking": "lacks", "failing": "fails", "software": "it is emulated on the CPU"}
    for refusal in search.rejected:
        state = names.get(refusal.device)
        assert refusal.reason.startswith(reasons[state] if state else NOT_THERE)
    passed = {refusal.device for refusal in search.rejected}
    for family in ranking:
        if chosen is not None and family == chosen.name.partition(":")[0]:
            break
        assert {name for name in ranked if name.partition(":")[0] == family} <= passed


@given(
    states=st.fixed_dictionaries(dict.fromkeys(FAMILIES, STATES)),
    wish=st.lists(st.sampled_from(FAMILIES), min_size=1, max_size=4),
)
def test_a_list_is_tried_in_its_order(states: dict[str, str], wish: list[str]) -> None:
    devices = [device(name, reason="lacks" if state == "lacking" else "") for name, state in states.items()
               if state != "absent"]  # fmt: skip
    failing = {name: "fails" for name, state in states.items() if state == "failing"}
    chosen, search = _walked(devices, wish, "linux", failing)
    fine = [name for name in wish if states[name] in ("fine", "software")]
    assert (chosen.name if chosen else None) == (fine[0] if fine else None)
    assert [refusal.device for refusal in search.rejected] == wish[: wish.index(fine[0]) if fine else None]


@given(
    states=st.fixed_dictionaries(dict.fromkeys(FAMILIES, STATES)),
    fastest=st.sampled_from([*FAMILIES, "nonsense"]),
    system=st.sampled_from([*RANKINGS, "freebsd14"]),
)
def test_auto_tries_what_was_measured_to_be_fastest_and_then_the_others_once(
    states: dict[str, str], fastest: str, system: str
) -> None:
    devices = [device(name, reason="lacks" if state == "lacking" else "") for name, state in states.items()
               if state != "absent"]  # fmt: skip

    def walked(search: DeviceSearch) -> list[str]:
        for found in search:
            search.refuse(found, "fails")
        return [refusal.device for refusal in search.rejected]

    def find(name: str, *, automatic: bool) -> list[Device]:
        return devices

    ranked = [name for name in walked(DeviceSearch(find, "auto", platform=system)) if name != fastest]
    assert walked(DeviceSearch(find, "auto", fastest=fastest, platform=system)) == [fastest, *ranked]
    explicit = DeviceSearch(find, "npu", fastest=fastest, platform=system)
    assert (walked(explicit), explicit.wish) == (["npu"], ["npu"])
    assert DeviceSearch(find, ["npu", "auto"], fastest=fastest, platform=system).wish == ["npu", fastest, "auto"]
    assert DeviceSearch(find, ["npu", "auto"], platform=system).wish == ["npu", "auto"]


# --- what is looked for


def test_what_comes_after_the_choice_is_not_looked_for() -> None:
    asked: list[tuple[str, bool]] = []

    def find(name: str, *, automatic: bool) -> Sequence[Device]:
        asked.append((name, automatic))
        return [device(name, reason="" if name == "openvino-gpu" else "absent")]

    for found in DeviceSearch(find, ["npu", "auto"], platform="linux"):
        assert found.name == "openvino-gpu"
        break
    assert asked == [("npu", False), ("cuda", True), ("openvino-gpu", True)]


# --- choose


@pytest.mark.parametrize(
    ("wish", "name", "rejected"),
    [
        ("auto", "cpu", (NO_CUDA, Refusal("openvino-gpu", NOT_THERE), Refusal("webgpu", NOT_THERE))),
        ("cpu", "cpu", ()),
        ("reference", "reference", ()),
        (["reference", "cpu"], "reference", ()),
        (["cuda", "cpu"], "cpu", (NO_CUDA,)),
        (("cuda", "npu", "cpu"), "cpu", (NO_CUDA, Refusal("npu", "not driven yet"))),
        (
            ["fpga", "reference"],
            "reference",
            (Refusal("fpga", "not found by runtime 1 or numpy 2", "available: 'cpu', 'reference'"),),
        ),
    ],
)
def test_the_first_available_device_of_the_wish_is_chosen(
    wish: str | Sequence[str], name: str, rejected: tuple[Refusal, ...]
) -> None:
    choice = choose(ALL, wish, platform="linux")
    assert choice == Choice(next(one for one in ALL if one.name == name), rejected)


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


@pytest.mark.parametrize(
    ("wish", "is_explicit"), [("cpu", True), (" CPU ", True), ("auto", False), ("Auto", False), (["cpu"], False)]
)
def test_one_name_is_explicit_and_auto_and_lists_are_not(wish: str | list[str], is_explicit: bool) -> None:
    assert DeviceSearch(lambda name, *, automatic: ALL, wish).is_explicit == is_explicit


def test_auto_never_takes_a_device_that_is_there_to_check_others() -> None:
    broken = device("cpu", reason="ONNX Runtime cannot be imported", remedy="pip install onnxruntime")
    with pytest.raises(DeviceUnavailable) as caught:
        choose([broken, REFERENCE], "auto", platform="elsewhere")
    assert caught.value.tried == (("cpu", broken.reason, broken.remedy),)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("nvidia", "here that is 'cuda' or 'tensorrt-rtx'; available: 'cpu', 'reference'"),
        ("gpu:0", "here that is 'cuda' or 'directml' or 'webgpu' or 'openvino-gpu'; available: 'cpu', 'reference'"),
        ("cdua", "available: 'cpu', 'reference'. The nearest is 'cuda'."),
    ],
)
def test_names_of_other_libraries_and_misspelt_ones_are_answered_with_ours(name: str, instead: str) -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        choose(ALL, name)
    ((_, _, remedy),) = caught.value.tried
    assert remedy == instead


def test_a_refusal_lists_each_device_that_was_tried() -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        choose(ALL, ["cuda", "fpga", "npu"])
    assert caught.value.tried == (
        ("cuda", "no GPU was found", "pip install embedllm[cuda]"),
        ("fpga", "not found by runtime 1 or numpy 2", "available: 'cpu', 'reference'"),
        ("npu", "not driven yet", ""),
    )


@pytest.mark.parametrize(
    ("name", "reason", "remedy"),
    [
        ("gpu:nvidia", "2 devices are called that", "there are 'gpu' (NVIDIA A), 'gpu:1' (NVIDIA B)"),
        ("gpu:amd", "no device is called that", "there are 'gpu' (NVIDIA A), 'gpu:1' (NVIDIA B), 'gpu:2' (Intel 1)"),
        ("gpu:1:2", "no device is called that", "there are 'gpu' (NVIDIA A)"),
        ("gpu:3", "no device is called that", "there are 'gpu' (NVIDIA A)"),
    ],
)
def test_a_name_that_fits_none_or_several_lists_them(name: str, reason: str, remedy: str) -> None:
    several = [device("gpu", words="NVIDIA A"), device("gpu:1", words="NVIDIA B"), device("gpu:2", words="Intel 1")]
    with pytest.raises(DeviceUnavailable) as caught:
        choose(several, name)
    ((tried, why, help_),) = caught.value.tried
    assert (tried, why) == (name, reason)
    assert help_.startswith(remedy)


def test_without_any_backend_the_error_says_so() -> None:
    with pytest.raises(DeviceUnavailable, match="not found by any backend"):
        choose([], "cpu")


@pytest.mark.parametrize("wish", ["", [], [""], ["cpu", ""], [None], [3]])
def test_an_empty_wish_is_a_slip_of_the_caller(wish: str | Sequence[str]) -> None:
    with pytest.raises(ValueError, match="expected a name such as 'cpu', 'auto', or a list of names"):
        choose(ALL, wish)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        (" , ", []),
        ("cpu", ["cpu"]),
        (" npu, cpu ,", ["npu", "cpu"]),
        ("openvino:HETERO:GPU,CPU", ["openvino:HETERO:GPU,CPU"]),
        ("npu,OpenVINO:AUTO:GPU.1, -NPU,CPU(2),cpu", ["npu", "OpenVINO:AUTO:GPU.1,-NPU,CPU(2)", "cpu"]),
        ("openvino:AUTO,CPU", ["openvino:AUTO", "CPU"]),
        ("openvino:GPU,cpu", ["openvino:GPU", "cpu"]),
        ("cuda:H200,CPU", ["cuda:H200", "CPU"]),
    ],
)
def test_commas_separate_names_but_not_targets(text: str, names: list[str]) -> None:
    assert names_in(text) == names


@pytest.mark.parametrize(
    ("wish", "names"),
    [
        (" CPU ,", "cpu"),
        ("cuda, Auto", ["cuda", "auto"]),
        (["npu,cuda:H200", " cpu"], ["npu", "cuda:H200", "cpu"]),
        (("cpu",), ["cpu"]),
        ("openvino:HETERO:GPU,CPU", "openvino:HETERO:GPU,CPU"),
    ],
)
def test_a_text_with_commas_is_a_list_wherever_a_device_is_asked_for(
    wish: str | list[str], names: str | list[str]
) -> None:
    assert plain(wish) == names
    search = DeviceSearch(lambda name, *, automatic: (), wish)
    assert search.names == ([names] if isinstance(names, str) else names)
    assert search.is_explicit is isinstance(names, str)


@pytest.mark.parametrize("system", RANKINGS)
def test_every_ranked_device_has_a_driver_and_none_is_an_npu(system: str) -> None:
    for name in RANKINGS[system]:
        assert find_family(name) is not None
        assert "npu" not in name
    assert RANKINGS[system][-1] == "cpu"


# --- the devices of this machine


def test_names_are_unique_and_what_is_not_available_says_why() -> None:
    found = registry.devices()
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert one.backend
        assert one.available != bool(one.reason)
    assert {one.name for one in found if one.available} >= {"cpu", "reference"}


def test_without_onnxruntime_the_cpu_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("engine", "session", "runtime"):
        monkeypatch.delattr(ort, module, raising=False)
        monkeypatch.delitem(sys.modules, f"embedllm.backends.ort.{module}", raising=False)
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
        monkeypatch.setattr(cpu_threads, "Path", lambda path: tmp_path / str(path).lstrip("/"))
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
        # ARM by a device tree: package, cluster, core; core_id begins again in each cluster
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
