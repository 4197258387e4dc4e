"""`embedllm graph` as a user types it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from embedllm.cli.main import cli
from embedllm.loading import resolve
from embedllm.package.package import open_package


def test_it_writes_a_graph_and_says_which(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_package("llama"), tmp_path / "package"))
    size = (folder / "model.dml.onnx").stat().st_size
    done = CliRunner().invoke(cli, ["graph", str(folder), "--variant", "directml-float16", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "folder": str(folder), "file": "model.dml.onnx", "variant": "directml-float16", "bytes": size
    }  # fmt: skip
    assert f"wrote '{folder / 'model.dml.onnx'}': directml-float16, {size:,} bytes" in done.stderr
    open_package(folder).check()


def test_it_writes_a_missing_graph_anew(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_package("llama"), tmp_path / "package"))
    (folder / "model.dml.onnx").unlink()
    done = CliRunner().invoke(cli, ["graph", str(folder), "--variant", "directml-float16"])
    assert done.exit_code == 0, done.stderr
    open_package(folder).check()


def test_it_says_when_it_changes_what_is_installed(
    tiny_package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Path(shutil.copytree(tiny_package("llama"), tmp_path / "embedllm" / "demo"))
    monkeypatch.setattr(resolve, "__file__", str(tmp_path / "embedllm" / "loading" / "resolve.py"))
    monkeypatch.chdir(tmp_path)
    told = f"'demo' is the model that ships with embedllm, in '{installed}'\n"
    done = CliRunner().invoke(cli, ["graph", "demo", "--variant", "openvino"])
    assert (done.exit_code, done.stderr.startswith(told)) == (0, True)
    shutil.copytree(installed, "demo")  # a folder of the user's own with that name
    done = CliRunner().invoke(cli, ["graph", "demo", "--variant", "openvino"])
    assert (done.exit_code, "ships" in done.stderr) == (0, False)


def test_an_unknown_variant_is_an_error_that_lists_them(tiny_package: Callable[..., Path]) -> None:
    done = CliRunner().invoke(cli, ["graph", str(tiny_package("llama")), "--variant", "dml"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: there is no variant 'dml'; expected one of: generic-float32, generic-float16,"
    )
