"""The options by which .ci/run divides the tests among its sections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
from pathlib import Path

def test_first():
    Path("no_more").touch()

def test_second():
    pass
"""


def run(folder: Path, *options: str) -> list[str]:
    """The ids of the tests that have passed, in this run and those before it."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        folder,
        "-p",
        "tests.conftest",
    ]
    command += ["--passed-to=passed", "--but-passed=passed", *options, "test_two.py"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # of the run around it
    subprocess.run(command, cwd=folder, env=own | {"PYTHONPATH": str(ROOT)}, timeout=120, check=True)
    return [json.loads(line) for line in (folder / "passed").read_text().splitlines()]


def test_what_a_section_left_when_it_had_to_end_is_what_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(TESTS)
    assert run(tmp_path, "--until=no_more") == ["test_two.py::test_first"]
    assert run(tmp_path) == ["test_two.py::test_first", "test_two.py::test_second"]
