"""Schemathesis against the server: requests that it makes of openapi.json, right ones and wrong ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from embedllm.server.settings import ServerSettings
from tests.server.serving import serving

PROGRAM = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or shutil.which("schemathesis")


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="schemathesis is not installed")
def test_no_request_is_answered_otherwise_than_described(tmp_path: Path) -> None:
    """One check is left out, that what the schema allows is done: a schema does not say what goes together."""
    assert PROGRAM is not None
    with serving(settings=ServerSettings(port=0, max_tokens=2)) as served:
        done = subprocess.run(
            [PROGRAM, "run", f"{served.url}/openapi.json", "--exclude-checks", "positive_data_acceptance",
             "--seed", "1", "--max-time", "12", "--request-timeout", "30", "--generation-database", "none",
             "--no-color"],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Server error" not in done.stdout
