"""GGUF models of the hub with their vision encoders: which one is downloaded, kept, and sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import embedllm
from embedllm.cli.main import cli
from embedllm.errors import ExportError, HubError
from embedllm.export import convert
from embedllm.loading.export_cache import exports
from embedllm.loading.resolve import find_package
from embedllm.package.package import WEIGHTS, open_package
from tests.support.hub_server import Hub, Repo, go_offline
from tests.support.tiny import tiny_checkpoint

pytest.importorskip("gguf")
NAME = "org/tiny-GGUF"
MODEL, ENCODER, OTHER = "tiny-F32.gguf", "mmproj-tiny-F16.gguf", "mmproj-tiny-Q8_0.gguf"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Of an Idefics 3: its text model, and its vision encoder twice."""
    from tests.support.gguf_mmproj import seeing_checkpoint, write_pair

    root = tmp_path_factory.mktemp("seeing")
    pair = write_pair(root / "gguf", seeing_checkpoint(root / "checkpoint", "idefics3"))
    encoder = pair.mmproj.read_bytes()
    return {MODEL: pair.text.read_bytes(), ENCODER: encoder, OTHER: encoder, "README.md": b"x"}


@pytest.fixture
def with_encoders(hub: Hub, files: dict[str, bytes]) -> Hub:
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit(files)
    return hub


def sees(folder: Path) -> bool:
    return open_package(folder).decoder.vision is not None


def test_a_model_of_the_hub_takes_images(with_encoders: Hub) -> None:
    """The preferred encoder is downloaded, no other one."""
    picture = Image.fromarray(np.zeros((40, 40, 3), np.uint8))
    content = [{"type": "image", "image": picture}, {"type": "text", "text": "what?"}]
    message: Any = [{"role": "user", "content": content}]
    with embedllm.load(NAME, device="cpu") as llm:
        assert llm.chat(message, max_tokens=2).text is not None
    assert with_encoders.downloaded() - {"README.md"} == {MODEL, ENCODER}


def test_the_export_is_that_of_the_two_files_and_is_kept(
    with_encoders: Hub, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_package(NAME)
    for name in (MODEL, ENCODER):
        (tmp_path / name).write_bytes(files[name])
    assert (folder / WEIGHTS).read_bytes() == (convert(tmp_path / MODEL, tmp_path / "near") / WEIGHTS).read_bytes()
    with_encoders.sent.clear()
    assert find_package(NAME) == folder == find_package(NAME, local_files_only=True)
    go_offline(monkeypatch)
    assert find_package(NAME) == folder
    assert with_encoders.downloaded() == set()
    assert len(exports()) == 1


def test_another_encoder_is_taken_by_name_and_is_another_export(with_encoders: Hub) -> None:
    folder = find_package(f"{NAME}:{OTHER}")
    assert sees(folder)
    assert with_encoders.downloaded() - {"README.md"} == {MODEL, OTHER}
    assert find_package(f"{NAME}:*F32*,mmproj*Q8_0*") == folder != find_package(NAME)


def test_a_model_without_its_encoder_is_asked_for_by_name(with_encoders: Hub) -> None:
    folder = find_package(f"{NAME}:no-mmproj")
    assert not sees(folder)
    assert with_encoders.downloaded() - {"README.md"} == {MODEL}
    assert find_package(f"{NAME}:tiny-F32.gguf,no-mmproj") == folder != find_package(NAME)


def test_an_encoder_that_does_not_fit_is_left_out_unless_it_was_named(hub: Hub, files: dict[str, bytes]) -> None:
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({**files, ENCODER: b"GGUF"})
    assert not sees(find_package(NAME))
    with pytest.raises(ExportError, match=f"{ENCODER}"):
        find_package(f"{NAME}:{ENCODER}")


def test_for_a_model_that_cannot_see_none_is_downloaded(hub: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    from tests.support.gguf_files import write_gguf

    text = write_gguf(tmp_path / MODEL, tiny_checkpoint(tmp_path / "hf", "qwen3")).read_bytes()
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({**files, MODEL: text})
    assert not sees(find_package(NAME))
    assert hub.downloaded() - {"README.md"} == {MODEL}
    with pytest.raises(ExportError, match="goes with the architecture llama"):
        find_package(f"{NAME}:{ENCODER}")


def test_an_encoder_that_comes_damaged_is_an_error(with_encoders: Hub) -> None:
    with_encoders.wrong.add(ENCODER)
    with pytest.raises(HubError, match=f"'{ENCODER}' of '{NAME}' came damaged"):
        find_package(NAME)
    with_encoders.wrong.clear()
    assert sees(find_package(NAME))


@pytest.mark.parametrize(
    ("source", "options", "downloaded", "does_see"),
    [
        (NAME, [], {MODEL, ENCODER}, True),
        (NAME, ["--no-mmproj"], {MODEL}, False),
        (f"{NAME}:no-mmproj", [], {MODEL}, False),
        (f"{NAME}:{OTHER}", [], {MODEL, OTHER}, True),
        (NAME, ["--mmproj", "near.gguf"], {MODEL}, True),
    ],
)
def test_the_command_exports_it_likewise(
    source: str, options: list[str], downloaded: set[str], does_see: bool, with_encoders: Hub, files: dict[str, bytes],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("near.gguf").write_bytes(files[ENCODER])
    run = CliRunner().invoke(cli, ["export", source, "out", "--quiet", *options])
    assert run.exit_code == 0, run.stderr
    assert sees(Path("out")) is does_see
    assert with_encoders.downloaded() - {"README.md"} == downloaded
