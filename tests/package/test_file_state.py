"""Weights on disk: damaged ones are found when they are loaded, and changed ones before they are computed with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedllm
from embedllm.errors import PackageError
from embedllm.export import convert
from embedllm.package.file_state import LoadedFiles, sampled_sha256
from embedllm.package.package import MANIFEST, WEIGHTS, open_package
from tests.support.encoder_folders import write_embedder
from tests.support.external_folders import transformers_js
from tests.support.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    return convert(tiny_checkpoint(folder / "checkpoint"), folder / "package")


@pytest.fixture
def package(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "package")


def test_an_export_notes_the_hash_of_samples_and_opens_by_it(package: Path) -> None:
    entry = json.loads((package / MANIFEST).read_text())["files"][WEIGHTS]
    assert entry["sampled_sha256"] == sampled_sha256(package / WEIGHTS)
    assert open_package(package).files[WEIGHTS].sampled_sha256 == entry["sampled_sha256"]


def test_a_package_without_that_hash_opens(package: Path) -> None:
    manifest = json.loads((package / MANIFEST).read_text())
    del manifest["files"][WEIGHTS]["sampled_sha256"]
    (package / MANIFEST).write_text(json.dumps(manifest))
    with embedllm.load(package, device="cpu", check=True) as llm:
        assert llm.generate("ab", max_tokens=1).tokens


@given(size=st.integers(300_000, 3_000_000), start=st.floats(0, 1), share=st.floats(1 / 60, 1))
def test_a_sixtieth_of_a_file_that_is_zero_is_seen(
    tmp_path_factory: pytest.TempPathFactory, size: int, start: float, share: float
) -> None:
    path = tmp_path_factory.mktemp("samples") / "file"
    path.write_bytes(b"\1" * size)
    before = sampled_sha256(path)
    length = int(size * share) + 1
    at = int((size - length) * start) if length < size else 0
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(min(length, size)))
    assert path.stat().st_size == size
    assert sampled_sha256(path) != before


def test_zeroed_weights_are_refused_at_load(package: Path) -> None:
    path = package / WEIGHTS
    path.write_bytes(path.read_bytes()[:4096] + bytes(path.stat().st_size - 4096))
    with pytest.raises(PackageError, match="is damaged: the sha256 of parts of it is"):
        embedllm.load(package, device="cpu")


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx", MANIFEST])
def test_a_checked_load_finds_what_differs_by_one_bit(package: Path, name: str) -> None:
    if name == MANIFEST:  # as if the weights' hash were of others
        manifest = json.loads((package / MANIFEST).read_text())
        manifest["files"][WEIGHTS]["sha256"] = "0" * 64
        (package / MANIFEST).write_text(json.dumps(manifest))
    else:
        data = bytearray((package / name).read_bytes())
        data[len(data) // 2] ^= 1
        (package / name).write_bytes(data)
    with pytest.raises(PackageError, match=rf"'.*{WEIGHTS if name == MANIFEST else name}' is damaged: its sha256 is"):
        embedllm.load(package, device="cpu", check=True)


def test_a_folder_of_others_has_nothing_to_check(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="notes no hashes to check; leave check out"):
        embedllm.load(transformers_js(tmp_path / "model"), device="cpu", check=True)


# While a model is loaded


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(64))
    os.utime(path, ns=(0, 0))  # whatever the clock of the file system says


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a mapped file cannot be cut")
@pytest.mark.parametrize("change", [cut, overwritten])
@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_weights_that_change_in_place_end_the_next_request_not_the_process(
    package: Path, change: Callable[[Path], None], device: str
) -> None:
    if device == "openvino":
        pytest.importorskip("openvino")
    with embedllm.load(package, device=device) as llm, llm.conversation() as talk:
        llm.generate("ab", max_tokens=1)
        change(package / WEIGHTS)
        with pytest.raises(PackageError, match="was changed while the model is loaded"):
            llm.generate("ab", max_tokens=1)
        with pytest.raises(PackageError, match="was changed while the model is loaded"):
            list(talk.stream("ab"))


def test_weights_of_an_embedding_model_are_watched_too(tmp_path: Path) -> None:
    folder = convert(write_embedder(tmp_path / "checkpoint"), tmp_path / "package")
    with embedllm.load(folder, device="cpu") as llm:
        llm.embed(["a fox"])
        overwritten(folder / WEIGHTS)
        with pytest.raises(PackageError, match="was changed while the model is loaded"):
            llm.embed(["a fox"])


def test_weights_that_were_replaced_or_deleted_are_still_mapped(whole: Path, package: Path) -> None:
    with embedllm.load(package, device="cpu") as llm:
        expected = llm.generate("ab", max_tokens=4, temperature=0).tokens
        shutil.copy(whole / WEIGHTS, package / "new")
        (package / "new").replace(package / WEIGHTS)
        assert llm.generate("ab", max_tokens=4, temperature=0).tokens == expected
        (package / WEIGHTS).unlink()
        assert llm.generate("ab", max_tokens=4, temperature=0).tokens == expected


def test_files_that_are_not_there_are_not_watched(tmp_path: Path) -> None:
    files = LoadedFiles([tmp_path / "none"])
    (tmp_path / "none").write_bytes(b"1")
    files.check()
