"""`embedllm embed` and `embedllm rerank` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from embedllm import load
from embedllm.cli.main import cli
from tests.support.encoder_folders import write_embedder, write_reranker


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the packages "embedder" and "reranker", which the command line exports."""
    folder = tmp_path_factory.mktemp("folders")
    for name, write in (("embedder", write_embedder), ("reranker", write_reranker)):
        done = typed("export", str(write(folder / "checkpoints" / name)), str(folder / name), "--quiet")
        assert done.exit_code == 0, done.stderr
    return folder


def typed(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


def test_vectors_are_lists_of_numbers_one_a_line(folders: Path) -> None:
    package = str(folders / "embedder")
    done = typed("embed", package, "a fox", "dog", "--device", "cpu", "--dimensions", "3", "--kind", "query")
    with load(package, device="cpu") as model:
        expected = model.embed(["a fox", "dog"], dimensions=3, kind="query")
    assert np.allclose([json.loads(line) for line in done.stdout.splitlines()], expected, atol=1e-6)
    raw = typed("embed", package, "a fox", "--raw")
    assert abs(np.linalg.norm(json.loads(raw.stdout)) - 1) > 0.01


def test_documents_come_best_first(folders: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\ufeffa dog\n\nred fox\n", encoding="utf-8")
    package = str(folders / "reranker")
    done = typed("rerank", package, "fox", "--file", str(lines))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [("a dog", "red fox")[one["index"]] for one in found] == [one["text"] for one in found]
    assert found[0]["score"] >= found[1]["score"]
    assert (
        typed("rerank", package, "fox", "--top", "1", "--file", "-", stdin="a dog\nred fox\n").stdout
        == (done.stdout.splitlines(keepends=True)[0])
    )


def test_a_line_of_a_file_ends_at_its_line_break_only(folders: Path, tmp_path: Path) -> None:
    """A form feed or U+2028 within a text made two of it, so that vectors and lines did not match."""
    (lines := tmp_path / "lines.txt").write_bytes("a\u2028dog\r\nred\x0cfox\x85es\nbird".encode())
    done = typed("embed", str(folders / "embedder"), "--file", str(lines), "--device", "cpu")
    with load(folders / "embedder", device="cpu") as model:
        expected = model.embed(["a\u2028dog", "red\x0cfox\x85es", "bird"])
    assert np.allclose([json.loads(line) for line in done.stdout.splitlines()], expected, atol=1e-6)


def test_many_texts_are_embedded_in_parts_as_in_one(folders: Path, tmp_path: Path) -> None:
    package, lines = str(folders / "embedder"), tmp_path / "lines.txt"
    texts = [f"fox {number}" for number in range(6)]
    lines.write_text("\n".join(texts), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embedllm.cli.commands.embed._PART", 2)
        done = typed("embed", package, "--file", str(lines), "--device", "cpu")
        lines.write_text("\n".join([*texts, "a" * 50]), encoding="utf-8")
        too_long = typed("embed", package, "--file", str(lines), "--device", "cpu")
    with load(package, device="cpu") as model:
        expected = model.embed(texts)
    assert np.allclose([json.loads(line) for line in done.stdout.splitlines()], expected, atol=1e-6)
    assert (too_long.stdout, "text 6 has" in too_long.stderr) == ("", True), "found before anything is computed"


def test_what_is_not_understood_is_said(folders: Path) -> None:
    embedder, reranker = str(folders / "embedder"), str(folders / "reranker")
    assert "give texts, or --file" in typed("embed", embedder).stderr
    assert "give texts or --file" in typed("embed", embedder, "a", "--file", "-", stdin="b").stderr
    assert "'-' has no texts" in typed("embed", embedder, "--file", "-", stdin="\n").stderr
    assert "'-' is no UTF-8 text" in typed("embed", embedder, "--file", "-", stdin=b"\xff").stderr
    assert "pass truncate=True" in typed("embed", embedder, "a" * 50).stderr
    assert "is a reranker: rerank() scores documents; it has no vectors" in typed("embed", reranker, "a").stderr
    done = typed("run", "hello", "--model", embedder, "--raw")
    assert (done.exit_code, "generates no text" in done.stderr) == (1, True)


def test_inspect_says_what_a_folder_does(folders: Path) -> None:
    said = json.loads(typed("inspect", str(folders / "embedder"), "--json").stdout)
    assert said["task"] == (
        "embeds texts, of the vectors of tokens (mean): 32 values and the length 1; prompts: query, document, topic"
    )
    assert said["memory"][0]["kv_float32_bytes"] == 0
    said = json.loads(typed("inspect", str(folders / "reranker"), "--json").stdout)
    assert said["task"] == "scores pairs of texts, of the vectors of tokens (cls, 32 x 32, 1 x 32)"
    assert json.loads(typed("inspect", "demo", "--json").stdout)["task"] == "generates text"


def test_parts_are_refused(folders: Path, tmp_path: Path) -> None:
    package = str(folders / "embedder")
    done = typed("shard", package, str(tmp_path / "parts"), "--size", "20KB")
    assert (done.exit_code, "which browsers do not" in done.stderr) == (1, True)
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize(
    ("package", "what", "command"),
    [
        ("embedder", "an embedding model", "embed MODEL TEXT"),
        ("reranker", "a reranker", "rerank MODEL QUERY DOCUMENT"),
    ],
)
@pytest.mark.parametrize("arguments", [["chat"], ["run"], ["bench"], ["tune"], ["eval", "--text", __file__]])
def test_commands_that_need_text_refuse_it(
    folders: Path, arguments: list[str], package: str, what: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> None:
        pytest.fail("it was measured before it was refused")

    monkeypatch.setattr("embedllm.profiling.tuning.search.measure", measured)
    monkeypatch.setattr("embedllm.profiling.bench.rounds.measure", measured)
    text = ["hello"] * (arguments == ["run"])
    done = typed(*arguments, str(folders / package), *text)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"is {what}: it generates no text. It is used with: embedllm {command}" in done.stderr


def test_exports_end_with_the_next_line_to_type(tmp_path: Path) -> None:
    for write, line in ((write_embedder, 'embed {} "TEXT"'), (write_reranker, 'rerank {} "QUERY" "DOCUMENT"')):
        out = tmp_path / write.__name__
        done = typed("export", str(write(tmp_path / f"source {write.__name__}")), str(out))
        assert done.stderr.splitlines()[-1] == f"next: embedllm {line.format(out)}"


def test_the_demo_is_refused_with_a_model_of_the_right_kind() -> None:
    assert "bge-reranker" not in typed("embed", "demo", "x").stderr
    assert "Embedding" not in typed("rerank", "demo", "x", "y").stderr
