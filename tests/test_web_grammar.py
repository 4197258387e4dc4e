"""Grammars in the browser let through only what they say: tests/web/grammar.test.mjs, run by Node.js."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

pytest_plugins = ["tests.web.fixtures"]

TEST = Path(__file__).parent / "web" / "grammar.test.mjs"


def test_grammars_hold_whatever_a_model_prefers(node: str, node_modules: Path) -> None:
    done = subprocess.run(
        [node, "--test", str(TEST)],
        env={**os.environ, "EMBEDLLM_NODE_MODULES": str(node_modules)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
