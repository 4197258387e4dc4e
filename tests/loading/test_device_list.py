"""What `embedllm devices` and a report say of devices: on this machine, and of probes that are made to fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import embedllm
from embedllm.backends.base import Device
from embedllm.backends.devices import drivers, registry
from embedllm.backends.devices.drivers import find_family
from embedllm.backends.ort.host_driver import PROVIDERS
from embedllm.backends.probe import probe
from embedllm.backends.probe import runner as probe_run
from embedllm.cli.commands.devices import device_lines
from embedllm.cli.main import cli
from embedllm.loading.device_list import ListedDevice, listing
from embedllm.package.package import open_package
from embedllm.profiling.inspection import device_report


def embed(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    return result.stdout


def listed(name: str, *, probe: bool = False) -> ListedDevice:
    return next(one for one in listing(probe=probe) if one.device.name == name)


@pytest.fixture
def doubtful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """OpenVINO's CPU as a device that has to be probed, with a memory of the test's own."""
    openvino = find_family("openvino")
    assert openvino is not None
    monkeypatch.setitem(
        drivers._FAMILIES, "openvino", replace(openvino, capabilities=replace(openvino.capabilities, probed=True))
    )
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path)
    return "openvino"


# --- the list


def test_every_provider_is_listed_with_what_it_lacks() -> None:
    found = {one.device.name: one for one in listing()}
    assert {provider.device for provider in PROVIDERS} <= found.keys()
    for one in found.values():
        assert one.tested or find_family(one.device.name) is None
        if not one.device.available:
            assert one.note.startswith(one.device.reason)
            assert one.device.remedy in one.note


def test_the_cpu_and_the_reference_need_no_probe() -> None:
    found = "qmoe-float32 or multimodal-float32 or generic-float32"
    assert (listed("cpu").note, listed("cpu").is_probed) == (found, False)
    assert (listed("reference").note, listed("reference").is_probed) == ("the weights", False)


def test_a_device_is_listed_before_and_after_its_probe(doubtful: str) -> None:
    before = listed(doubtful)
    assert (before.is_probed, before.probe) == (True, None)
    assert before.note == "openvino or openvino-latent; not probed yet, --probe does it now"
    after = listed(doubtful, probe=True)
    assert after.note.startswith("openvino, probed: right to 0.0")
    assert listed(doubtful) == after


def test_a_device_whose_probe_failed_is_not_available(doubtful: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_run, "command", lambda device: [sys.executable, "-c", "import os; os.abort()"])
    failed = listed(doubtful, probe=True)
    assert not failed.probed_device.available
    assert failed.note.startswith("the probe crashed (")
    assert failed.note.endswith("EMBEDLLM_PROBE=off to use it all the same)")
    # it may go better next time
    assert listed(doubtful).note == "openvino or openvino-latent; not probed yet, --probe does it now"


def test_a_device_that_computes_wrongly_is_not_available(doubtful: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = probe.failed("failed: probe mismatch", is_wrong=True)
    monkeypatch.setattr(probe_run, "in_process", lambda *_, **__: wrong)
    probed_device = listed(doubtful, probe=True).probed_device
    assert (probed_device.available, probed_device.reason) == (False, "the probe failed: probe mismatch")
    (device,) = (device for device in embedllm.devices() if device.name == doubtful)
    assert device == probed_device
    monkeypatch.setenv("EMBEDLLM_PROBE", "off")
    (device,) = (device for device in embedllm.devices() if device.name == doubtful)
    assert device.available


# --- the command


def test_the_table_and_the_json_say_the_same(doubtful: str) -> None:
    entries = {entry["name"]: entry for entry in json.loads(embed("devices", "--json", "--probe"))}
    assert entries["cpu"]["runs"] == ["qmoe-float32", "multimodal-float32", "generic-float32"]
    assert entries["cpu"]["probe"] is None
    assert entries[doubtful]["probe"]["ok"] is True
    table = embed("devices")
    rows = [line.split()[:2] for line in table.splitlines()[1:] if not line.startswith(" ")]
    assert {name: word == "yes" for name, word in rows} == {name: one["available"] for name, one in entries.items()}
    assert "openvino, probed: right to 0.0" in table


GPU = Device(name="gpu", backend="b 1", description="d", available=False, reason="r", memory=150_754_820_096)
LONG = "a reason of many words" + ", and more" * 9
DEVICES = [
    GPU,
    Device(name="cuda", backend="b", description="", available=False, reason=LONG, remedy="pip install 'x[y]' z" * 5),
    Device(name="cpu", backend="b 2", description="c", available=True),
]


def test_available_devices_come_first_and_remedies_stand_alone() -> None:
    found = [ListedDevice(device=device, runs=("g",), is_probed=False, probe=None, tested="") for device in DEVICES]
    assert device_lines(found) == [
        "device  available",
        "cpu     yes  c (b 2)",
        "             runs g",
        "gpu     no   d, 140 GiB (b 1)",
        "             r",
        f"cuda    no   {LONG}",
        f"             {DEVICES[1].remedy}",
    ]
    folded = device_lines(found, 60)
    assert folded[-1] == f"             {DEVICES[1].remedy}"  # whole: it is there to be copied
    assert max(map(len, folded[:-1])) <= 60
    assert " ".join(line.strip() for line in folded[5:-1]) == f"cuda    no   {LONG}"
    assert [line for line in device_lines(found) + folded if line.endswith(" ")] == []


def test_the_table_of_this_machine_has_no_trailing_blanks() -> None:
    lines = embed("devices").splitlines()
    assert lines == [line.rstrip() for line in lines]


def test_a_probe_of_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "devices", lambda: DEVICES)
    for arguments in (["devices", "--probe"], ["devices", "--probe", "--json"]):
        result = CliRunner().invoke(cli, arguments)
        assert (result.exit_code, result.stderr) == (0, "nothing to probe: no GPU or plug-in is available\n")
    assert CliRunner().invoke(cli, ["devices"]).stderr == ""


def test_a_device_that_is_probed_is_not_nothing(doubtful: str) -> None:
    assert "nothing to probe" not in CliRunner().invoke(cli, ["devices", "--probe"]).stderr


def test_options_that_would_be_passed_over_are_refused() -> None:
    result = CliRunner().invoke(cli, ["devices", "--probe", "--report"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--probe and --report are mutually exclusive" in result.stderr


def test_the_model_that_is_named_has_to_be_there() -> None:
    result = CliRunner().invoke(cli, ["devices", "--model", "/nope"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no folder '/nope'" in result.stderr


# --- the report


def test_a_report_measures_what_is_there_and_says_why_not(
    tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = open_package(tiny_package())
    cpu, reference = (next(one for one in registry.devices() if one.name == name) for name in ("cpu", "reference"))
    absent = Device(name="cuda", backend="b", description="", available=False, reason="no driver", remedy="install it")
    broken = replace(cpu, name="openvino")  # listed, but not there for this folder
    older = type(package)(package.folder, {**package.manifest, "graphs": package.manifest["graphs"][:1]})  # type: ignore[index]  # a list
    monkeypatch.setattr(registry, "devices_for", lambda package: [cpu, absent, broken, reference])
    named: list[str] = []
    trials = list(device_report.trials(older, named.append))
    assert named == ["reference", "cpu", "cuda", "openvino"]
    right, missing, unusable = trials
    assert 0 < right.max_difference < 0.5 < right.max_logit
    assert right.prefill_tokens_s > 0
    assert right.decode_tokens_s > 0
    assert right.error == ""
    assert missing.error == "no driver (install it)"
    assert "has no 'openvino' graph" in unusable.error


def test_a_report_begins_with_the_machine() -> None:
    facts = device_report.machine()
    assert facts["embedllm"] == embedllm.__version__
    assert facts["numpy"] != "not installed"
    assert any(name.startswith("onnxruntime") for name in facts)
    assert "drivers" in facts
