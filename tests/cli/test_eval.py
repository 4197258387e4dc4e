"""`embedllm eval` as a user types it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import embedllm
from embedllm.cli.main import cli
from embedllm.export import Recipe

MakePackage = Callable[..., Path]
WINDOW = "20"
SENTENCE = "List all files that were changed today, and sort them by size. "


@pytest.fixture(scope="module")
def base(tiny_package: MakePackage) -> str:
    return str(tiny_package("qwen3", Recipe(bits=16)))


@pytest.fixture(scope="module")
def small(tiny_package: MakePackage) -> str:
    return str(tiny_package("qwen3", Recipe(bits=4)))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(SENTENCE * 3, encoding="utf-8")
    return str(path)


def embed(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["eval", "--device", "cpu", "--window", WINDOW, *arguments], prog_name="embedllm")


@pytest.mark.slow
def test_a_table_has_a_row_for_each_model_and_the_base_first(base: str, small: str, text: str) -> None:
    done = embed(small, "--text", text, "--against", base, "--exact-too")
    assert (done.exit_code, done.stderr) == (0, "")
    about, header, *rows = done.stdout.splitlines()
    assert f"tokens of {text} in windows of {WINDOW}" in about
    assert about.startswith("40 tokens of ") or "tokens of" in about
    assert header.split() == ["model", "device", "MB", "bits/weight", "perplexity", "ratio", "mean", "KL",
                              "95", "%", "KL", "99", "%", "KL", "same", "top"]  # fmt: skip
    assert [row.split("  ")[0] for row in rows] == [f"{base} (base, exact)", small, f"{small} (exact)"]


def test_without_a_base_there_is_the_perplexity_alone(small: str, text: str) -> None:
    done = embed(small, "--text", text)
    assert done.exit_code == 0, done.stderr
    _, header, row = done.stdout.splitlines()
    assert header.split() == ["model", "device", "MB", "bits/weight", "perplexity"]
    assert float(row.split()[-1]) > 1


@pytest.mark.slow
def test_json_and_table_say_the_same(base: str, small: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = embed(small, "--text", text, "--against", base, "--json", str(file))
    assert (done.exit_code, done.stderr) == (0, f"wrote '{file}'\n")
    found = json.loads(file.read_text(encoding="utf-8"))
    (model,) = found["models"]
    assert found["embedllm"] == embedllm.__version__
    assert found["text"]["tokens"] % int(WINDOW) == 0
    far = model["text"]["divergence"]
    shown = f"{model['text']['perplexity']:.3f}  {far['perplexity_ratio']:.4f}  {far['mean_kl']:.5f}"
    assert shown in done.stdout.splitlines()[-1]
    assert json.loads(embed(small, "--text", text, "--against", base, "--json", "-").stdout) == found


@pytest.mark.slow
def test_a_plot_is_written(base: str, small: str, text: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = embed(small, "--text", text, "--against", base, "--plot", str(tmp_path / "found.png"))
    assert (done.exit_code, done.stderr) == (0, f"wrote '{tmp_path / 'found.png'}'\n")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_tasks_are_counted_by_group(small: str, tmp_path: Path) -> None:
    ask = [{"role": "user", "content": "hello"}]
    with embedllm.load(small, device="cpu") as llm:
        reply = llm.generate(ask, embedllm.Sampling(temperature=0), max_tokens=256, special=True).text
    tasks = [{"group": "echo", "messages": ask, "answer": reply}, {"group": "echo", "messages": ask, "answer": "no"}]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)), encoding="utf-8")
    done = embed(small, "--tasks", str(tmp_path / "tasks.jsonl"))
    assert done.exit_code == 0, done.stderr
    header, row = done.stdout.splitlines()
    assert (header.split()[-1], row.split()[-1]) == ("echo", "1/2")


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --text, --tasks or both"),
        (("--text", "TEXT", "--exact", "--exact-too"), "mutually exclusive"),
        (("--text", "TEXT", "--plot", "found.png"), "needs --text and --against"),
        (("--text", "none.txt"), "File 'none.txt' does not exist"),
        (("--text", "TEXT", "--tokens", "-1"), "--tokens"),
    ],
)
def test_slips_are_usage_errors(arguments: tuple[str, ...], message: str, small: str, text: str) -> None:
    done = embed(small, *(text if one == "TEXT" else one for one in arguments))
    assert done.exit_code == 2
    assert message in done.stderr
    assert CliRunner().invoke(cli, ["eval"]).exit_code == 2


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.txt", b"", "holds no text; expected plain UTF-8"),
        ("t.txt", b"hello", "is too short: its longest document has"),
        ("t.txt", b"caf\xe9", "is no UTF-8 text (unexpected end of data at byte 3)"),
        ("t.jsonl", b'{"text": "a"}\nhello\n', "line 2 of "),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_in_a_line(
    name: str, data: bytes, message: str, small: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    done = embed(small, "--text", str(tmp_path / name))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_another_vocabulary_is_an_error(base: str, tiny_package: MakePackage, text: str) -> None:
    done = embed(str(tiny_package("qwen3", vocab_size=299)), "--text", text, "--against", base)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "its vocabulary has 299 tokens instead of 307" in done.stderr


def test_where_nothing_can_be_written_is_said_before_the_work(
    base: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No model is at the path, so that loading one would be another error."""
    for option, file, message in (
        ("--json", tmp_path / "none" / "found.json", f"there is no folder '{tmp_path / 'none'}'"),
        ("--plot", tmp_path / "found.pdf", "a plot is .svg or .png"),
    ):
        done = embed("none", "--text", text, "--against", base, option, str(file))
        assert done.exit_code == 1
        assert message in done.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = embed("none", "--text", text, "--against", base, "--plot", str(tmp_path / "found.png"))
    assert "pip install 'embedllm[plot]'" in done.stderr


def test_nothing_is_written_when_a_model_fails(base: str, text: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    done = embed("none", "--text", text, "--against", base, "--json", str(tmp_path / "found.json"))
    assert done.exit_code == 1
    assert "there is no folder 'none'" in done.stderr
    assert sorted(tmp_path.iterdir()) == before
