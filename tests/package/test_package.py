"""A folder is opened, or refused with a PackageError that names the file and says what to do."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from embedllm.errors import PackageError
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture_json import to_json
from embedllm.package.entries import FileEntry, Graph
from embedllm.package.features import FORMAT
from embedllm.package.package import MANIFEST, WEIGHTS, open_package, sha256
from tests.support.tiny import tiny_config

CONTENTS = {WEIGHTS: b"weights", "model.onnx": b"graph", "tokenizer.json": b"{}"}
AGAIN = "Copy or export the folder again"
NEEDED = [name for name in CONTENTS if name != "model.onnx"]  # by every device


def manifest_of(contents: dict[str, bytes]) -> dict[str, object]:
    """What `embedllm export` writes, as far as opening reads it."""
    files = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()}
    return {
        "format": FORMAT,
        "features": [],
        "name": "tiny",
        "context": 128,
        "tokens": {"bos": None, "pad": 0, "stop": [2, 5]},
        "graphs": [{"file": "model.onnx", "variant": "generic-float32", "activations": "float32"}],
        "files": files,
        "architecture": to_json(describe(Config(tiny_config("llama")))),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole package, small enough to read."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name, data in CONTENTS.items():
        (folder / name).write_bytes(data)
    write_manifest(folder, manifest_of(CONTENTS))
    return folder


def write_manifest(folder: Path, manifest: object) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def changed(folder: Path, key: str, value: object) -> Path:
    """The folder with one value of its manifest exchanged; "a.b" is b inside a. Ellipsis removes it."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    *outer, last = key.split("/")
    place = manifest
    for name in outer:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    write_manifest(folder, manifest)
    return folder


def refusal(folder: str | Path, *, whole: bool = True) -> str:
    with pytest.raises(PackageError) as caught:
        open_package(folder, whole=whole)
    return str(caught.value)


# What opens


def test_a_whole_folder_opens(folder: Path) -> None:
    package = open_package(str(folder))
    assert (package.folder, package.name, package.context, package.stop_tokens) == (folder, "tiny", 128, (2, 5))
    assert package.graphs == (Graph(file="model.onnx", variant="generic-float32", activations="float32"),)
    assert package.graph("generic-float32") == package.graphs[0]
    assert package.graph("openvino") is None
    assert package.weights == folder / WEIGHTS
    assert package.files[WEIGHTS] == FileEntry(bytes=7, sha256=sha256(folder / WEIGHTS))
    package.check()


def test_what_the_export_writes_opens_and_is_undamaged(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package())
    package.check()
    assert package.decoder.model_type == "qwen3"
    assert [graph.variant for graph in package.graphs] == [
        "generic-float32", "generic-float16", "gpu-float32", "webgpu-float16", "directml-float16",
        "wasm-float32", "openvino",
    ]  # fmt: skip


def test_files_that_the_manifest_does_not_name_are_left_alone(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / "adapters").mkdir()
    open_package(folder).check()


@pytest.mark.parametrize("key", ["more", "tokens/more", "graphs/0/more", "files/model.onnx/more"])
def test_keys_of_a_later_version_of_the_same_format_are_passed_over(key: str, folder: Path) -> None:
    open_package(changed(folder, key, {"anything": [1, None]})).check()


def test_a_file_in_a_folder_of_the_package_opens(folder: Path) -> None:
    (folder / "lora").mkdir()
    (folder / "lora" / "é 日本.bin").write_bytes(b"1234")
    entry = {"bytes": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}
    open_package(changed(folder, "files", {**manifest_of(CONTENTS)["files"], "lora/é 日本.bin": entry})).check()  # type: ignore[dict-item]


def test_a_folder_of_links_into_a_store_opens_when_they_may_be_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's own store needs no switch: tests/package/test_links.py."""
    monkeypatch.setenv("EMBEDLLM_FOLLOW_LINKS", "1")
    links = tmp_path / "snapshot"
    links.mkdir()
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    open_package(links).check()


# What is no package


def test_a_missing_folder_is_told_how_to_write_one(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == (
        f"there is no folder '{tmp_path / 'none'}'. Write one with: embedllm export SOURCE {tmp_path / 'none'}"
    )


def test_a_file_instead_of_a_folder_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"'{tmp_path / 'file'}' is a file; expected a folder" in refusal(tmp_path / "file")
    assert refusal(folder / WEIGHTS).endswith(f"a file of an exported folder; give the folder: {folder}")


def test_a_hugging_face_folder_is_told_to_be_exported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert refusal(tmp_path).startswith(f"'{tmp_path}' is a Hugging Face folder")
    assert refusal(tmp_path).endswith(f"Export it first: embedllm export {tmp_path} OUT")


def test_a_folder_without_a_manifest_is_named(tmp_path: Path) -> None:
    assert f"'{tmp_path}' has no {MANIFEST}; expected a folder written by: embedllm export" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "nul\0byte", "~nobody-of-this-name/model", ""])
def test_a_name_that_can_be_no_folder_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert name[:20] in refusal(name)


# A damaged manifest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json",
        b'{"format": 1',
        b"\xff\xfe{\0}\0",
        b'{"name": "\xff"}',
        b"[" * 100_000,
        b'{"format": ' + b"9" * 5000,
    ],
    ids=["empty", "text", "cut", "UTF-16", "not UTF-8", "nested", "digits"],
)
def test_a_manifest_that_is_no_json_is_refused(data: bytes, folder: Path) -> None:
    (folder / MANIFEST).write_bytes(data)
    message = refusal(folder)
    assert message.startswith(f"cannot read '{folder / MANIFEST}': ")
    assert AGAIN in message


@pytest.mark.parametrize("manifest", [[], "text", 3, None])
def test_a_manifest_that_is_no_object_is_refused(manifest: object, folder: Path) -> None:
    write_manifest(folder, manifest)
    message = refusal(folder)
    assert f"'{folder / MANIFEST}'" in message
    assert f"holds a {type(manifest).__name__}; expected a JSON object" in message
    assert AGAIN in message


WRONG: dict[str, tuple[object, ...]] = {
    "format": (..., None, "1", 1.0, True, 0, -1),
    "features": (None, "shards", [3], ["a\nb"]),
    "name": (..., None, 3, ["tiny"]),
    "context": (..., None, "128", 128.5, True, 0, -1),
    "tokens": (..., None, [], "2"),
    "tokens/stop": (..., None, 2, ["2"], [2.0], [True], [None], [-1]),
    "graphs": (..., None, {}, "model.onnx", [3], [None], ["model.onnx"]),
    "graphs/0/file": (..., None, 3),
    "graphs/0/variant": (..., None, 3),
    "graphs/0/activations": (..., None, 3),
    "files": (..., None, [], "x", {WEIGHTS: None}, {WEIGHTS: 3}, {WEIGHTS: []}),
    f"files/{WEIGHTS}/bytes": (..., None, "7", 7.0, True, -7),
    f"files/{WEIGHTS}/sha256": (..., None, 3),
    f"files/{WEIGHTS}/blocks": (None, 3, "x", []),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_or_missing_value_is_named_with_its_key(key: str, value: object, folder: Path) -> None:
    message = refusal(changed(folder, key, value))
    assert message.startswith(f"'{folder / MANIFEST}' is damaged: ")
    assert f"'{WEIGHTS if isinstance(value, dict) and value else key.split('/')[-1]}'" in message
    assert "expected" in message
    assert AGAIN in message


def test_a_newer_format_says_how_to_upgrade_whatever_else_it_holds(folder: Path) -> None:
    write_manifest(folder, {"format": FORMAT + 1, "files": ["another structure"]})
    message = refusal(folder)
    assert f"'{folder}' has format {FORMAT + 1}; this version of embedllm reads format {FORMAT}" in message
    assert message.endswith("Upgrade with: pip install -U embedllm")


def test_a_feature_that_is_not_known_is_refused_by_its_name_whatever_else_it_holds(folder: Path) -> None:
    write_manifest(folder, {"format": FORMAT, "features": ["shards", "sparse", "x"], "files": ["another structure"]})
    message = refusal(folder)
    assert f"'{folder}' needs 'sparse', 'x', which this version of embedllm does not read" in message
    assert message.endswith("Upgrade with: pip install -U embedllm")


OUTSIDE = ["", ".", "..", "../x", "a/../../x", "a/..", "./x", "a//b", "/etc/passwd", "//server/share", "..\\x",
           "a\\b", "\\x", "C:x", "C:\\x", "\\\\server\\share\\x", "x:stream", "a\0b", "a\nb", "\ud800"]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
def test_a_file_name_that_leaves_the_folder_is_refused_on_every_system(name: str, folder: Path) -> None:
    entry = {"bytes": 0, "sha256": ""}
    message = refusal(changed(folder, "files", {**manifest_of(CONTENTS)["files"], name: entry}))  # type: ignore[dict-item]
    assert message.startswith(f"'{folder / MANIFEST}' is damaged: ")
    assert repr(name) in message
    assert repr(name) in refusal(changed(folder, "graphs/0/file", name))


def test_a_graph_that_is_not_listed_is_named(folder: Path) -> None:
    message = refusal(changed(folder, "graphs/0/file", "other.onnx"))
    assert message.startswith(f"'{folder / MANIFEST}' is damaged: ")
    assert "it names the graph 'other.onnx' but does not list that file" in message


def test_weights_that_are_not_listed_are_named(folder: Path) -> None:
    message = refusal(changed(folder, "files", {"model.onnx": manifest_of(CONTENTS)["files"]["model.onnx"]}))  # type: ignore[index]
    assert message.startswith(f"'{folder / MANIFEST}' is damaged: ")
    assert f"it does not list '{WEIGHTS}'" in message


def test_an_architecture_that_is_not_understood_is_named_with_its_file(folder: Path) -> None:
    assert refusal(changed(folder, "architecture", {"model_type": 3})) == (
        f"cannot use '{folder / MANIFEST}': the manifest's 'architecture.model_type' is 3; expected str. "
        "Export the folder again, or upgrade with: pip install -U embedllm"
    )


def test_two_contexts_are_refused(folder: Path) -> None:
    message = refusal(changed(folder, "context", 4096))
    assert "gives two contexts, 4096 and, in its architecture, 128" in message


# Damaged files


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    message = refusal(folder, whole=False)
    assert f"'{folder}' is incomplete: cannot read '{name}' (No such file or directory)" in message
    assert AGAIN in message


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("cut", [True, False])
def test_a_file_of_another_size_is_named_with_both_sizes(name: str, cut: bool, folder: Path) -> None:
    data = CONTENTS[name]
    (folder / name).write_bytes(data[:-1] if cut else data + b"x")
    message = refusal(folder, whole=False)
    assert f"'{folder / name}' has {len(data) + (-1 if cut else 1)} bytes; the manifest says {len(data)}" in message
    assert AGAIN in message


def test_a_folder_in_place_of_a_file_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").mkdir()
    size = (folder / "tokenizer.json").stat().st_size
    message = refusal(changed(folder, "files/tokenizer.json/bytes", size))
    assert f"'{folder / 'tokenizer.json'}' is no file" in message


@pytest.mark.parametrize("data", [None, b"", b"graphs"])
def test_a_damaged_graph_is_left_out_with_the_reason(data: bytes | None, folder: Path) -> None:
    """Other devices have graphs of their own, or none: they run."""
    (folder / "model.onnx").unlink()
    if data is not None:
        (folder / "model.onnx").write_bytes(data)
    package = open_package(folder, whole=False)
    assert (package.graphs, package.graph("generic-float32")) == ((), None)
    assert [graph.file for graph in package.listed] == ["model.onnx"]
    reason = f"'{folder}' is incomplete: cannot read 'model.onnx' (No such file or directory)"
    if data is not None:
        reason = f"'{folder / 'model.onnx'}' has {len(data)} bytes; the manifest says 5"
    assert package.damaged == {"generic-float32": reason}
    with pytest.raises(PackageError) as caught:
        package.check()
    assert str(caught.value) == f"{reason}. Rewrite with: embedllm graph {folder} --variant generic-float32"
    assert refusal(folder) == str(caught.value)


def test_weights_that_a_manifest_calls_a_graph_are_needed_all_the_same(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(PackageError, match=f"cannot read '{WEIGHTS}'"):
        open_package(changed(folder, "graphs/0/file", WEIGHTS), whole=False)


def test_check_names_every_file_that_differs(folder: Path) -> None:
    package = open_package(folder)
    for name in CONTENTS:
        (folder / name).write_bytes(b"x")
    assert package.faults() == {
        name: f"'{folder / name}' has 1 bytes; the manifest says {len(data)}" for name, data in CONTENTS.items()
    }
    with pytest.raises(PackageError) as caught:
        package.check()
    assert str(caught.value) == f"{'; '.join(package.faults().values())}. {AGAIN}."


@pytest.mark.parametrize("name", CONTENTS)
def test_check_finds_a_single_flipped_bit(name: str, folder: Path) -> None:
    data = bytearray(CONTENTS[name])
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    package = open_package(folder)  # the size is right
    found, expected = hashlib.sha256(data).hexdigest(), hashlib.sha256(CONTENTS[name]).hexdigest()
    with pytest.raises(PackageError) as caught:
        package.check()
    remedy = f"{AGAIN}." if name in NEEDED else f"Rewrite with: embedllm graph {folder} --variant generic-float32"
    assert str(caught.value) == (
        f"'{folder / name}' is damaged: its sha256 is {found}, the manifest says {expected}. {remedy}"
    )


def test_check_names_a_file_that_went_away_since_opening(folder: Path) -> None:
    package = open_package(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(PackageError, match=r"cannot read 'tokenizer\.json'"):
        package.check()


def test_check_reads_every_file_of_an_export(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_package(), tmp_path / "copy")
    package = open_package(copy)
    assert {path.name for path in copy.iterdir()} == {MANIFEST, *package.files}
    for name in package.files:
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 0x80
        (copy / name).write_bytes(data)
        with pytest.raises(PackageError, match="is damaged: its sha256"):
            package.check()
        data[len(data) // 2] ^= 0x80
        (copy / name).write_bytes(data)
    package.check()
