"""The rule in JavaScript is the rule in Python: vectors that Python makes, replayed by Node.js."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tools import make_web_vectors

TESTS = [Path(__file__).parent / "node" / name for name in ("rule.test.mjs", "rule_text.test.mjs")]
ATOL = 2e-6  # processors differ in the last bit of a float32 exp; log probabilities are written to six digits


def test_the_vectors_are_what_python_answers() -> None:
    """When this fails because the rule changed on purpose: python -m tools.make_web_vectors."""
    kept = json.loads(make_web_vectors.PATH.read_text(encoding="utf-8"))
    made = json.loads(make_web_vectors.written(make_web_vectors.vectors()))
    differ(made, kept, "")
    assert make_web_vectors.PATH.stat().st_size < 300_000


def differ(made: object, kept: object, where: str) -> None:
    """Fails where two parsed JSON values differ, fractions by more than rounding."""
    if isinstance(made, dict) and isinstance(kept, dict):
        assert made.keys() == kept.keys(), where
        for name in made:
            differ(made[name], kept[name], f"{where}.{name}")
    elif isinstance(made, list) and isinstance(kept, list):
        assert len(made) == len(kept), where
        for place, (one, other) in enumerate(zip(made, kept, strict=True)):
            differ(one, other, f"{where}[{place}]")
    elif isinstance(made, float) and isinstance(kept, float):
        assert made == pytest.approx(kept, abs=ATOL, rel=ATOL), where
    else:
        assert made == kept, where


def test_javascript_answers_alike(node: str) -> None:
    done = subprocess.run([node, "--test", *map(str, TESTS)], capture_output=True, text=True, timeout=120, check=False)
    failed = [line for line in done.stdout.splitlines() if "not ok" in line or "error:" in line]
    assert done.returncode == 0, "\n".join(failed) + done.stderr[-2000:]
