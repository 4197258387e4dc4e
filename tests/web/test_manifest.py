"""Manifests that JavaScript refuses: the wrong ones of test_package.py, in Node.js without a browser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from embedllm.package.features import FEATURES, FORMAT
from embedllm.package.package import MANIFEST, WEIGHTS
from tests.package.test_package import CONTENTS, OUTSIDE, WRONG, changed, manifest_of, write_manifest
from tests.web.support.server import ROOT

READ = """
    import {text} from "node:stream/consumers";
    const {readManifest} = await import(process.argv[1]);
    const refusal = (manifest) => {
      try { readManifest(manifest, "the manifest"); } catch (error) { return `${error.name}: ${error.message}`; }
      return "";
    };
    console.log(JSON.stringify(JSON.parse(await text(process.stdin)).map(refusal)));
"""


def refusals(node: str, manifests: list[str]) -> list[str]:
    """What readManifest says of these texts; empty where it takes them."""
    command = [
        node,
        "--input-type=module",
        "-e",
        READ,
        (ROOT / "bindings_web" / "src" / "package" / "manifest.js").as_uri(),
    ]
    done = subprocess.run(command, input=json.dumps(manifests), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_manifest(tmp_path, manifest_of(CONTENTS))
    return tmp_path


def with_change(folder: Path, key: str, value: object) -> str:
    """The text of a manifest that is right but for one value."""
    text = (changed(folder, key, value) / MANIFEST).read_text(encoding="utf-8")
    write_manifest(folder, manifest_of(CONTENTS))
    return text


def test_a_right_manifest_is_taken_and_keys_of_later_versions_are_passed_over(node: str, folder: Path) -> None:
    keys = ("more", "tokens/more", "graphs/0/more", "files/model.onnx/more")
    right = [with_change(folder, key, {"anything": [1, None]}) for key in keys]
    assert refusals(node, [*right, (folder / MANIFEST).read_text(encoding="utf-8")]) == [""] * 5


def test_what_is_no_json_object_is_refused(node: str) -> None:
    texts = ["", "no json", '{"format": 1', '{"format": ' + "9" * 5000, "[" * 100_000, "[]", '"text"', "3", "null"]
    for text, found in zip(texts, refusals(node, texts), strict=True):
        assert found.startswith("PackageError: "), text[:20]
        assert "'the manifest'" in found


def test_a_wrong_or_missing_value_is_named_with_its_key(node: str, folder: Path) -> None:
    same = ("1.0", "7.0", "[2.0]")  # what JavaScript reads alike: it has no integers apart
    cases = [(key, value) for key, values in WRONG.items() for value in values if repr(value) not in same]
    found = refusals(node, [with_change(folder, key, value) for key, value in cases])
    for (key, value), said in zip(cases, found, strict=True):
        assert said.startswith("PackageError: 'the manifest' is damaged: "), (key, value)
        assert f"'{WEIGHTS if isinstance(value, dict) and value else key.split('/')[-1]}'" in said, (key, value)
        assert "expected" in said


def test_a_file_name_that_leaves_the_folder_is_refused(node: str, folder: Path) -> None:
    entry = {"bytes": 0, "sha256": "0" * 64}
    listed = manifest_of(CONTENTS)["files"]
    assert isinstance(listed, dict)
    texts = [with_change(folder, "files", {**listed, name: entry}) for name in OUTSIDE]
    texts += [with_change(folder, "graphs/0/file", name) for name in OUTSIDE]
    for name, said in zip(OUTSIDE * 2, refusals(node, texts), strict=True):
        assert "expected one inside its folder" in said, repr(name)


def test_a_hash_that_could_be_a_path_is_refused(node: str, folder: Path) -> None:
    hashes = ("../../secret", "", "A" * 64, "0" * 63, "0" * 64 + "\n")
    texts = [with_change(folder, f"files/{WEIGHTS}/sha256", sha256) for sha256 in hashes]
    assert all("expected 64 hexadecimal digits" in said for said in refusals(node, texts))


def test_hashes_of_blocks_are_checked(node: str, folder: Path) -> None:
    count, one = -(-len(CONTENTS[WEIGHTS]) // 4), "0" * 64
    right = {"bytes": 4, "sha256": [one] * count, "root": one}
    wrong = ({"bytes": 0}, {"bytes": 1 << 27}, {"sha256": [one] * (count - 1)}, {"sha256": [one[1:]] * count},
             {"root": "../../x"}, {"root": None})  # fmt: skip
    texts = [with_change(folder, f"files/{WEIGHTS}/blocks", {**right, **each}) for each in ({}, *wrong)]
    taken, *said = refusals(node, texts)
    assert taken == ""
    assert all("'blocks'" in each and "expected" in each for each in said)


def test_what_does_not_agree_is_refused(node: str, folder: Path) -> None:
    listed = manifest_of(CONTENTS)["files"]
    assert isinstance(listed, dict)
    texts = [
        with_change(folder, "graphs/0/file", "other.onnx"),
        with_change(folder, "files", {name: entry for name, entry in listed.items() if name != WEIGHTS}),
        with_change(folder, "context", 4096),
        json.dumps({"format": FORMAT + 1, "files": ["another structure"]}),
        json.dumps({"format": FORMAT, "features": ["shards", "sparse"], "files": ["another structure"]}),
        with_change(folder, "architecture/encoder", {"pooling": "mean"}),
    ]
    other, weights, contexts, newer, feature, texts_only = refusals(node, texts)
    assert "it names the graph 'other.onnx' but does not list that file" in other
    assert f"it does not list '{WEIGHTS}'" in weights
    assert "it gives two contexts, 4096 and, in its architecture, 128" in contexts
    assert f"has format {FORMAT + 1}; this version of embedllm-web reads format {FORMAT}. Upgrade" in newer
    assert "needs 'sparse', which this version of embedllm-web does not read. Upgrade" in feature
    assert "is an embedding or reranker model, which browsers do not run" in texts_only


def test_every_feature_that_python_reads_is_known(node: str, folder: Path) -> None:
    assert refusals(node, [with_change(folder, "features", list(FEATURES))]) == [""]


def test_shards_that_make_no_sense_are_refused(node: str, folder: Path) -> None:
    first, second = ({"file": f"{WEIGHTS}.{i}-of-2", "bytes": i + 2, "sha256": "0" * 64} for i in (1, 2))
    right = with_change(folder, "shards", {WEIGHTS: [first, second]})
    wrong = {
        "its 'shards' is []; expected an object": [],
        "its shards of 'weights.safetensors' are []; expected a list of one or more shards": {WEIGHTS: []},
        "one of its shards of 'weights.safetensors' has the 'bytes' missing": {WEIGHTS: [3]},
        "has the 'bytes' 0; expected a whole number >= 1": {WEIGHTS: [{**first, "bytes": 0}, second]},
        "has the 'sha256' \"x\"; expected 64 hexadecimal digits": {WEIGHTS: [{**first, "sha256": "x"}, second]},
        "have 6 bytes together; the file has 7": {WEIGHTS: [first, {**second, "bytes": 3}]},
        "it names the file 'weights.safetensors.1-of-2' twice": {WEIGHTS: [first, {**second, "file": first["file"]}]},
        "it names the file 'model.onnx' twice": {WEIGHTS: [first, {**second, "file": "model.onnx"}]},
        'it names the file "../x"; expected one inside its folder': {WEIGHTS: [first, {**second, "file": "../x"}]},
        "it names the file missing; expected one inside": {WEIGHTS: [{"bytes": 7, "sha256": "0" * 64}]},
        "it has shards of 'other' but does not list that file": {"other": [first]},
    }
    said = refusals(node, [right, *(with_change(folder, "shards", value) for value in wrong.values())])
    assert said[0] == ""
    for expected, found in zip(wrong, said[1:], strict=True):
        assert expected in found
