"""Provider libraries: registered once, with errors that say which one and what to do. No GPU is needed."""

from __future__ import annotations

import os
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from embedllm.backends.ort import plugins
from embedllm.backends.ort.plugins import GROUP, KNOWN, WEBGPU, Library
from embedllm.errors import DeviceError


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins like a fresh process, as far as this module knows."""
    monkeypatch.setattr(plugins, "_registered", set())


@pytest.fixture
def registrations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What ONNX Runtime was asked to register, which it is not in earnest."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(
        plugins.ort, "register_execution_provider_library", lambda name, path: asked.append((name, path))
    )
    return asked


def library_of_nothing() -> str:
    """An entry point of a third party."""
    return __file__


def broken() -> str:
    raise RuntimeError("no such wheel\nmore")


def device(provider: str, **told: str) -> SimpleNamespace:
    """Like an OrtEpDevice."""
    hardware = SimpleNamespace(
        type="OrtHardwareDeviceType.GPU", vendor="Intel", vendor_id=0x8086, device_id=0x56A0, metadata=told
    )
    return SimpleNamespace(ep_name=provider, ep_metadata={"version": "0.4.0"}, device=hardware)


def test_a_library_is_registered_once_under_its_providers_name(
    registrations: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "provider.so"
    path.write_bytes(b"")
    library = Library(provider="QNNExecutionProvider", path=str(path))
    for _ in range(3):
        plugins.register(library)
    assert registrations == [("QNNExecutionProvider", str(path))]


def test_threads_register_a_library_once(registrations: list[tuple[str, str]]) -> None:
    library, gate = Library(provider="Any", path=__file__), threading.Barrier(8)

    def register() -> None:
        gate.wait()
        plugins.register(library)

    threads = [threading.Thread(target=register) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registrations) == 1


def test_a_library_that_the_application_has_registered_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, path: str) -> None:
        raise RuntimeError("EP library is already registered under Any")

    monkeypatch.setattr(plugins.ort, "register_execution_provider_library", refuse)
    plugins.register(Library(provider="Any", path=__file__))


def test_a_file_that_is_no_library_is_refused_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    """By ONNX Runtime itself."""
    with pytest.raises(DeviceError, match=r"cannot load '.*test_plugins.py' as Any: .*Check that it is a plug-in"):
        plugins.register(Library(provider="Any", path=__file__))
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"the library of Any is not at '.*none.so'. Check that"):
        plugins.register(Library(provider="Any", path=str(tmp_path / "none.so")))


def test_a_package_that_does_not_tell_is_refused_with_the_line_that_mends_it() -> None:
    library = Library(provider="Any", package="json", install="pip install any")
    with pytest.raises(DeviceError, match=r"package 'json' does not tell where .*: pip install any"):
        plugins.register(library)


def test_third_parties_announce_libraries_as_entry_points(
    registrations: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = [EntryPoint(name, f"{__name__}:{value}", GROUP) for name, value in
                 (("NewExecutionProvider", "library_of_nothing"), ("Broken", "broken"))]  # fmt: skip
    monkeypatch.setattr(plugins.metadata, "entry_points", lambda *, group: announced if group == GROUP else [])
    *known, new, wrong = plugins.libraries()
    assert tuple(known) == KNOWN
    assert plugins.is_installed(new)
    plugins.register(new)
    assert registrations == [("NewExecutionProvider", __file__)]
    with pytest.raises(DeviceError, match=r"entry point 'Broken = .*:broken' does not tell .*: no such wheel. Check"):
        plugins.register(wrong)


def test_what_a_library_wants_of_the_environment_is_there_only_while_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str | None] = []
    monkeypatch.setenv("EMBEDLLM_TEST_SET", "before")
    monkeypatch.setenv("EMBEDLLM_HOST_TUNING", "environment")
    monkeypatch.setattr(
        plugins.ort,
        "register_execution_provider_library",
        lambda name, path: seen.extend(os.environ.get(f"EMBEDLLM_TEST_{one}") for one in ("SET", "UNSET")),
    )
    wanted = {"EMBEDLLM_TEST_SET": "1", "EMBEDLLM_TEST_UNSET": "2"}
    plugins.register(Library(provider="Any", path=__file__, environment=wanted))
    assert seen == ["before", "2"]  # what the application has set stays
    assert os.environ["EMBEDLLM_TEST_SET"] == "before"
    assert "EMBEDLLM_TEST_UNSET" not in os.environ


def test_devices_are_those_of_the_provider_with_what_is_told(
    registrations: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [device("CPUExecutionProvider"), device("Any"), device("Any", Description="Arc", DxgiVideoMemory="16 GB")]
    monkeypatch.setattr(plugins.ort, "get_ep_devices", lambda: listed)
    plain, named = plugins.devices(Library(provider="Any", path=__file__))
    assert (plain.kind, plain.vendor, plain.vendor_id, plain.device_id) == ("GPU", "Intel", 0x8086, 0x56A0)
    assert (plain.description, plain.memory, plain.version) == ("Intel 0x8086:0x56a0", 0, "0.4.0")
    assert (named.description, named.memory) == ("Arc", 16 << 30)
    assert named.handle is listed[2]


@pytest.mark.parametrize(("told", "expected"), [("16114 MB", 16114 << 20), ("512", 512), ("", 0), ("much", 0)])
def test_memory_is_read_where_it_is_told(told: str, expected: int) -> None:
    assert plugins._bytes(told) == expected


@pytest.mark.skipif(not plugins.is_installed(WEBGPU), reason=f"{WEBGPU.package} is not installed")
def test_the_real_webgpu_library_is_registered_quietly(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBEDLLM_HOST_TUNING", "quiet")
    found = plugins.devices(WEBGPU)
    assert {device.provider for device in found} == {"WebGpuExecutionProvider"}  # the CPU, where there is no GPU
    assert capfd.readouterr() == ("", "")
