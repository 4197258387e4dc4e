"""Processes that end while a daemon thread loads, embeds or compiles a grammar, outside the engine loop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedllm.export import convert
from tests.support.encoder_folders import write_embedder

ROOT = Path(__file__).parents[2]
WAIT_S = 30
SCRIPT = """
import sys, threading
import embedllm

in_call = threading.Event()

def endlessly(work):
    def run():
        while True:
            work()
            in_call.set()
    for _ in range(2):
        threading.Thread(target=run, daemon=True).start()
    in_call.wait()

threading.excepthook = lambda args: None  # a DeviceError, if there is time for it
"""
CALLS = "import embedllm.generation.engine_loop\nfrom embedllm.files.native_calls import native_call\n"


def ended(code: str, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT + code, *arguments], cwd=ROOT, capture_output=True, text=True,
                          timeout=WAIT_S, check=False)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_end_of_a_process_waits_for_a_call_and_refuses_the_next_one() -> None:
    code = (
        CALLS
        + """
both = threading.Barrier(3)

def work():
    with native_call():
        in_call.set()
        both.wait()
        native_calls._ending.wait()
        time.sleep(0.1)
        print("done\\n", end="", flush=True)  # one write: both threads print

import time
from embedllm.files import native_calls
endlessly(work)
both.wait()
print("left", flush=True)
"""
    )
    assert ended(code) == (0, "left\ndone\ndone\n", "")


def test_a_call_that_takes_longer_is_not_waited_for() -> None:
    code = (
        CALLS
        + """
from embedllm.files import native_calls
native_calls.END_S = 0.2

def work():
    with native_call():
        in_call.set()
        threading.Event().wait()

endlessly(work)
print("left", flush=True)
"""
    )
    assert ended(code) == (0, "left\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        "llm.generate('x', max_tokens=1, response_format=[f'{next(n)} {i}' for i in range(3000)])",
        "embedllm.load('demo', device='cpu').close()",
    ],
)
def test_a_process_whose_daemon_thread_works_in_a_runtime_ends_well(work: str) -> None:
    code = f"""
from itertools import count
n, llm = count(), embedllm.load("demo", device="cpu")
endlessly(lambda: {work})
"""
    assert ended(code) == (0, "", "")


@pytest.mark.slow
def test_a_process_whose_daemon_thread_embeds_ends_well(tmp_path: Path) -> None:
    folder = convert(write_embedder(tmp_path / "checkpoint"), tmp_path / "package")
    code = """
model = embedllm.load(sys.argv[1], device="cpu")
endlessly(lambda: model.embed(["the quick brown fox"] * 2000))
"""
    assert ended(code, str(folder)) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("call", ["generate('x', max_tokens=30)", "beam_search('x', 2, max_tokens=30)"])
def test_a_process_whose_daemon_thread_computes_without_an_engine_loop_ends_well(call: str) -> None:
    code = f"""
here = threading.local()

def work():
    if not hasattr(here, "llm"):
        here.llm = embedllm.load("demo", device="cpu", threaded=False)
    here.llm.{call}

endlessly(work)
"""
    assert ended(code) == (0, "", "")


@pytest.mark.slow
def test_a_process_whose_daemon_thread_tunes_ends_well_and_keeps_nothing(tmp_path: Path) -> None:
    code = """
import os, random, time
os.environ["XDG_CACHE_HOME"] = sys.argv[1]

def tune():
    embedllm.tune("demo", devices="cpu", on_trial=lambda trial: in_call.set())

endlessly(tune)
time.sleep(random.random())
"""
    for _ in range(4):
        assert ended(code, str(tmp_path)) == (0, "", "")
    assert not [*tmp_path.glob("embedllm/tuned/*")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked here")
def test_a_forked_process_waits_for_no_call_of_its_parent() -> None:
    code = (
        CALLS
        + """
import os, time

def work():
    with native_call():
        in_call.set()
        ends.wait()

ends = threading.Event()
endlessly(work)
began = time.monotonic()
if not (child := os.fork()):
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(time.monotonic() - began < 4)
ends.set()
"""
    )
    assert ended(code) == (0, "True\n", "")
