"""`embedllm serve`: what its arguments mean, and what it refuses before anything is loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from embedllm.cli.commands.serve import served_models
from embedllm.cli.main import cli
from embedllm.loading.options import LoadOptions


def test_names_aliases_pins_and_adapters_of_models() -> None:
    found = served_models(("small=org/name", "some/large.gguf"), LoadOptions(threads=2), adapters={"style": "folder"},
                          aliases={"gpt-4o": "large"}, pinned=("large",))  # fmt: skip
    small, large = found
    assert (small.name, small.path, small.aliases, small.pinned) == ("small", "org/name", (), False)
    assert (large.name, large.path, large.aliases, large.pinned) == ("large", "some/large.gguf", ("gpt-4o",), True)
    assert (dict(small.options.adapters or {}), large.options.adapters) == ({"style": "folder"}, None)
    (alone,) = served_models(("demo",), LoadOptions(), adapters={}, aliases={}, pinned=())
    assert alone.pinned
    with pytest.raises(click.UsageError, match="--pin names 'other'"):
        served_models(("demo",), LoadOptions(), adapters={}, aliases={}, pinned=("other",))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--host", "0.0.0.0"], "there is no API key"), (["--max-body", "big"], "'big' is no size"),
     (["--adapter", "x"], "is not NAME=VALUE"), (["a", "b", "--draft", "c"], "--draft goes with one model"),
     (["demo", "missing"], "there is no 'missing'; expected a folder")],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMBEDLLM_API_KEY", raising=False)
    result = CliRunner().invoke(cli, ["serve", *arguments])
    assert result.exit_code != 0
    assert says in " ".join(result.stderr.split())


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("embedllm.cli.commands.serve.find_spec",
                        lambda name: None if name == "uvicorn" else real(name))  # fmt: skip
    result = CliRunner().invoke(cli, ["serve", "demo"])
    assert result.exit_code == 1
    assert 'pip install "embedllm[server]"' in result.stderr


def test_keys_are_read_from_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from embedllm.cli.commands.serve import _api_keys

    file = tmp_path / "keys"
    file.write_text("one\n\n two \n", encoding="utf-8")
    monkeypatch.setenv("EMBEDLLM_API_KEY", "three,")
    assert _api_keys(file) == ("three", "one", "two")
