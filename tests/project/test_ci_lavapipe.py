"""The script that lends WebGPU's tests a software driver."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "lavapipe.sh"
PLACE = ROOT / "build" / "lavapipe"

pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("bash") is None, reason="it is for Linux")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", SCRIPT, *command], capture_output=True, text=True, timeout=60, check=False)


def test_without_a_command_it_says_what_it_is_for() -> None:
    ended = run()
    assert ended.returncode == 2
    for named in (".ci/lavapipe.sh pytest", "EMBEDLLM_ALLOW_SOFTWARE_GPU", "[test,webgpu]"):
        assert named in ended.stderr


def test_a_command_that_is_not_there_is_named() -> None:
    ended = run("no-such-command")
    assert (ended.returncode, ended.stderr) == (127, "lavapipe: there is no command 'no-such-command'\n")


@pytest.mark.skipif(not (PLACE / "driver.json").is_file(), reason="no driver was fetched; .ci/lavapipe.sh true does it")
def test_another_call_leaves_the_driver_file_by_whose_time_probes_are_kept() -> None:
    first = run("true")
    if first.returncode == 77:
        pytest.skip(first.stderr)
    before = (PLACE / "driver.json").stat().st_mtime_ns
    assert run("sh", "-c", "exit 3").returncode == 3
    assert (PLACE / "driver.json").stat().st_mtime_ns == before
