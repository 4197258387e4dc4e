"""KeyboardInterrupt, and os.fork, on the real runtimes: in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak_interrupts.py"
FORKS = """
import os, sys, threading, time
import embedllm
what, device = sys.argv[1:]
llm = embedllm.load("demo", device=device)
greedy = embedllm.Sampling(temperature=0)
expected = llm.generate("list files", greedy, max_tokens=5).tokens
busy = threading.Thread(target=lambda: llm.generate("count", greedy, max_tokens=300, stop_tokens=()))
busy.start()
time.sleep(0.1)
child = os.fork()
if not child:
    if what == "use":
        try:
            llm.generate("x", max_tokens=2)
        except embedllm.DeviceError as error:
            assert "before os.fork()" in str(error)
        else:
            os._exit(3)
    elif what == "close":
        llm.close()
    elif what == "drop":
        del llm
    sys.exit(0)
for _ in range(600):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.05)
else:
    os.kill(child, 9)
    os.waitpid(child, 0)
    sys.exit("the child hangs")
busy.join()
assert status == 0, status
assert llm.generate("list files", greedy, max_tokens=5).tokens == expected
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")


@pytest.mark.parametrize("device", ["cpu", pytest.param("openvino", marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_interrupts_at_any_moment_leave_a_model_that_answers_rightly(device: str, count: int) -> None:
    command = [sys.executable, str(SOAK), "--device", device, "--interrupts", str(count)]
    subprocess.run(command, check=True, timeout=300, env=os.environ | {"PYTHONPATH": str(SOAK.parents[2])})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no os.fork here")
@pytest.mark.parametrize("device", ["cpu", pytest.param("openvino", marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["use", pytest.param("close", marks=pytest.mark.slow),
                                  pytest.param("drop", marks=pytest.mark.slow), "exit"])  # fmt: skip
def test_a_child_that_was_forked_says_so_and_ends(what: str, device: str) -> None:
    env = os.environ | {"PYTHONPATH": str(SOAK.parents[2])}
    subprocess.run([sys.executable, "-c", FORKS, what, device], check=True, timeout=120, env=env)
