"""Grammars in the browser let through only what they say: tests/web/node/*.test.mjs, run by Node.js."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "node"


@pytest.mark.parametrize("name", ["grammar", "constraint"])
def test_grammars_hold_whatever_a_model_prefers(name: str, node: str, node_modules: Path) -> None:
    done = subprocess.run(
        [node, "--test", str(FOLDER / f"{name}.test.mjs")],
        env={**os.environ, "EMBEDLLM_NODE_MODULES": str(node_modules)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
