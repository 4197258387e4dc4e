"""load() and close(): which folder, which device, and that the memory comes back."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from embedllm import DeviceUnavailable, Model, PackageError, Sampling, aload, load
from embedllm.backends.ort.engine import OrtEngine
from embedllm.export import Recipe
from embedllm.loading.resolve import package_folder

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def package(tiny_package: Callable[..., Path]) -> Path:
    return tiny_package("llama")


@pytest.fixture
def opened(package: Path) -> Iterator[Callable[..., Model]]:
    """load() of a tiny package; what it gave is closed at the end."""
    models: list[Model] = []

    def open_model(**options: object) -> Model:
        models.append(load(package, **options))  # type: ignore[arg-type]  # the options of load()
        return models[-1]

    yield open_model
    for model in models:
        model.close()


# --- the folder


def test_demo_is_the_model_of_this_library() -> None:
    with load() as one, load("demo") as two:
        assert one.package.folder == two.package.folder == package_folder("demo")
        assert one.can_chat


@pytest.mark.parametrize("address", ["https://example.com/model", "https://example.com/model.gguf", "file:///a.gguf"])
def test_an_address_is_refused_as_one(address: str) -> None:
    with pytest.raises(PackageError, match=f"'{address}' is an address. Give a folder, a GGUF file"):
        load(address)


def test_a_model_is_closed_at_the_end_of_async_with(package: Path) -> None:
    async def main() -> Model:
        async with await aload(package, device="cpu") as llm:
            assert (await llm.agenerate([5, 6], temperature=0, max_tokens=2)).tokens
        return llm

    with pytest.raises(ValueError, match="this model was closed"):
        asyncio.run(main()).generate([5, 6])


def test_a_folder_named_demo_goes_before_it(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(package, tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    with load("demo") as model:
        assert model.package.folder.resolve() == tmp_path / "demo"


@pytest.mark.parametrize(
    ("asked", "on_device", "expected"),
    [(None, None, 256 << 20), (None, 1 << 20, 256 << 20), (None, 4 << 30, 4 << 30), (1 << 20, 4 << 30, 1 << 20)],
)
def test_the_prefix_cache_is_as_large_as_asked_or_as_the_device_has_room(
    package: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None, on_device: int | None, expected: int
) -> None:
    if on_device is not None:
        monkeypatch.setattr(OrtEngine, "prefix_bytes", on_device, raising=False)
    with load(package, device="cpu", prefix_cache=asked) as llm:
        cache = llm.runner.sequences.prefix_cache
        assert cache is not None
        assert cache.statistics.capacity_bytes == expected


@pytest.mark.parametrize("wrong", [-1, 1.5, "1 GiB"])
def test_a_prefix_cache_of_no_bytes_is_refused(package: Path, wrong: object) -> None:
    with pytest.raises(ValueError, match="prefix_cache is"):
        load(package, device="cpu", prefix_cache=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_folder", [True, False])
def test_another_thing_named_demo_does_not_hide_it(
    is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir() if is_folder else (tmp_path / "demo").touch()
    monkeypatch.chdir(tmp_path)
    with load("demo") as model:
        assert model.name == "demo"


def test_a_demo_that_was_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("embedllm.loading.resolve.__file__", str(tmp_path / "loading" / "resolve.py"))
    with pytest.raises(PackageError, match="the demo model is not part of this installation"):
        load()


def test_a_demo_inside_of_an_archive_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "app.pyz"  # as python -m zipapp makes one, from which Python imports
    archive.touch()
    monkeypatch.setattr("embedllm.loading.resolve.__file__", str(archive / "embedllm" / "loading" / "resolve.py"))
    expected = f"the demo model lies in the archive '{archive}', and a model is read from a folder. Unpack its "
    with pytest.raises(PackageError, match=re.escape(expected)):
        load()


class AnyPath:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


def test_any_kind_of_path_is_taken(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package.parent)
    monkeypatch.setenv("HOME", str(package.parent))
    monkeypatch.setenv("USERPROFILE", str(package.parent))
    for path in (package, str(package), AnyPath(package), package.name, f"~/{package.name}"):
        with load(path) as model:
            assert model.package.folder.resolve() == package.resolve()


def test_a_path_that_is_not_utf8_is_named_as_the_cause(package: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(package, tmp_path / "mod\udce8le")  # as Python spells the byte E8, of Latin-1
    with pytest.raises(PackageError, match=r"path has a byte that is not UTF-8.*Rename"):
        load(folder)


def test_no_file_is_read_in_the_encoding_of_the_locale(package: Path) -> None:
    """Programs that make EncodingWarning an error could load nothing."""
    program = f"import embedllm; embedllm.load({str(package)!r}, device='cpu').generate('hello', max_tokens=2)"
    command = [sys.executable, "-X", "warn_default_encoding", "-W", "always::EncodingWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    ours = str(Path(__file__).parents[2])
    assert [line for line in done.stderr.splitlines() if "EncodingWarning" in line and ours in line] == []


def test_a_damaged_small_file_is_found_before_the_weights_are_loaded(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(package, tmp_path / "package")
    config = tmp_path / "package" / "tokenizer.json"
    config.write_text("{" * config.stat().st_size)
    monkeypatch.setattr("embedllm.backends.devices.registry.open_engine", None)  # calling it would be a TypeError
    with pytest.raises(PackageError, match="is not a tokenizer that can be read"):
        load(tmp_path / "package")


# --- the device


def test_an_unknown_device_is_an_error_that_lists_what_was_tried(package: Path) -> None:
    with pytest.raises(DeviceUnavailable, match=r"Tried 'fpga': not found by onnxruntime .*available: 'cpu'") as caught:
        load(package, device="fpga")
    ((name, reason, remedy),) = caught.value.tried
    assert name == "fpga"
    assert reason.startswith("not found by onnxruntime")
    assert remedy.startswith("available: 'cpu', ")
    assert remedy.endswith("'reference'")


@pytest.mark.parametrize(
    ("variable", "argument", "chosen"),
    [
        (None, None, "cpu"),
        ("", None, "cpu"),
        (" , ", None, "cpu"),
        ("reference", None, "reference"),
        ("fpga, reference,cpu", None, "reference"),
        ("reference", "cpu", "cpu"),
        ("fpga", ["fpga", "reference", "cpu"], "reference"),
        ("reference", "auto", "cpu"),
        ("reference", ["fpga", "auto"], "cpu"),
    ],
)
def test_the_argument_goes_before_the_environment(
    opened: Callable[..., Model],
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    argument: str | Sequence[str] | None,
    chosen: str,
) -> None:
    if variable is not None:
        monkeypatch.setenv("EMBEDLLM_DEVICE", variable)
    assert opened(device=argument).device.name == chosen


def test_an_unknown_device_in_the_environment_is_an_error(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLLM_DEVICE", "fpga")
    with pytest.raises(DeviceUnavailable, match="'fpga'"):
        load(package)


def test_the_choice_and_its_reasons_are_logged(opened: Callable[..., Model], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="embedllm"):
        opened(device=["fpga", "reference"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("running 'package' on reference (numpy ")
    assert "; not fpga: not found by onnxruntime" in line


def test_a_device_that_the_folder_has_no_graph_for_is_passed_over(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    shutil.copytree(package, folder)
    manifest = json.loads((folder / "embedllm.json").read_text())
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["variant"] != "generic-float32"]
    (folder / "embedllm.json").write_text(json.dumps(manifest))
    with load(folder, device=["cpu", "reference"]) as model:
        assert model.device.name == "reference"
    with pytest.raises(DeviceUnavailable, match="no 'generic-float32' graph") as caught:
        load(folder)
    assert caught.value.tried[-1][0] == "cpu"


def test_the_reference_gives_the_tokens_of_the_exact_cpu(opened: Callable[..., Model]) -> None:
    cpu, reference = opened(exact=True), opened(device="reference")
    for prompt in ("hello", "List all files", "def main():"):
        one, two = (model.generate(prompt, GREEDY, max_tokens=20, stop_tokens=()) for model in (cpu, reference))
        assert one.tokens == two.tokens
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)  # docs/numerics.md


def test_rounded_products_are_refused_where_exact_ones_were_asked_for() -> None:
    with pytest.raises(PackageError, match=r"'demo' cannot be loaded with exact=True: .* or on the device 'reference'"):
        load("demo", exact=True)
    with load("demo", device="reference", exact=True) as model:
        assert model.device.name == "reference"


def test_an_embedding_of_8_bits_is_no_product_unless_it_is_the_head_too(tiny_package: Callable[..., Path]) -> None:
    recipe = Recipe(bits=4, head_bits=4, embedding_bits=8)
    with load(tiny_package("llama", recipe), exact=True) as model:
        assert model.generate("hi", max_tokens=2).tokens
    with pytest.raises(PackageError, match="8-bit matrices"):
        load(tiny_package("qwen3", Recipe(bits=4, head_bits=8)), exact=True)


@pytest.mark.parametrize("group", [16, 64])
def test_groups_whose_products_round_all_the_same_are_refused(group: int, tiny_package: Callable[..., Path]) -> None:
    """ONNX Runtime 1.31 heeds mlas.qnbit.force_fp32 for groups of 32 only: off by 0.07 and 0.11 here."""
    with pytest.raises(PackageError, match=f"4-bit matrices in groups of {group}, whose products round"):
        load(tiny_package("llama", Recipe(group_size=group)), exact=True)
    folder = tiny_package("llama", Recipe(group_size=group, exact=True))
    with load(folder, exact=True) as model, load(folder, device="reference") as reference:
        one, two = (each.generate("hello", GREEDY, max_tokens=20, stop_tokens=()) for each in (model, reference))
    assert one.tokens == two.tokens
    assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)


@pytest.mark.parametrize("threads", [-1, 1025])
def test_a_number_of_threads_that_cannot_be_meant_is_refused(package: Path, threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads is {threads}; expected 0"):
        load(package, threads=threads)


# --- the end


def test_a_closed_model_says_so_and_closes_again(package: Path) -> None:
    with load(package) as model:
        assert repr(model) == "<embedllm.Model 'package' on cpu, context 128>"
        stream = model.stream("hi")
    model.close()
    assert repr(model) == "<embedllm.Model 'package' closed, context 128>"
    for call in (lambda: model.generate("hi"), lambda: next(stream), lambda: model.device):
        with pytest.raises(ValueError, match="this model was closed"):
            call()


MEMORY = """
import sys
import embedllm

def megabytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) / 1024

embedllm.load(sys.argv[1]).close()  # all modules are there now
before = megabytes()
for _ in range(5):  # glibc treats the first one differently
    model = embedllm.load(sys.argv[2])
    conversation = model.conversation()
    conversation.say("hello", max_tokens=2)
    model.generate([5] * 64, max_tokens=2)
    loaded = megabytes()
    model.close()
    print(loaded - before, megabytes() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_close_returns_the_memory_of_weights_and_caches(package: Path, tiny_package: Callable[..., Path]) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "head_dim": 64}
    large = tiny_package("llama", num_hidden_layers=8, **sizes)
    weights = (large / "weights.safetensors").stat().st_size / 2**20
    assert weights > 60
    environment = {**os.environ, "EMBEDLLM_HOST_TUNING": "trim"}
    command = [sys.executable, "-c", MEMORY, package, large]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    rounds = [[float(number) for number in line.split()] for line in done.stdout.splitlines()]
    assert len(rounds) == 5
    for loaded, closed in rounds:
        assert loaded > 0.8 * weights
        assert closed < 0.8 * loaded, rounds
    # of all but the first: now and then the end of a thread's heap stays until the next load
    # (backends/system/host_memory.py)
    assert min(closed / loaded for loaded, closed in rounds[1:]) < 0.3, rounds
