"""A process that writes caches and conversations until it is killed, and what must be found afterwards.

python -m tests.benchmarks.soak_killed MODEL FOLDER SEED    # what is killed: a JSON line for all that is on disk
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import embedllm
from embedllm.files.atomic import PARTIAL
from embedllm.kv_cache.kv_file import open_state
from tests.benchmarks.soak_checks import Alone, Wrong

ROOT = Path(__file__).parents[2]
GREEDY = embedllm.Sampling(temperature=0)
WAIT_S = 120


def write(model: str, folder: Path, seed: int) -> None:
    """Until the end of the process: long prompts, whose KV goes to disk, and conversations, saved over themselves."""
    random = Random(seed)
    with embedllm.load(model, device="cpu", cache_dir=folder / "kv") as llm:
        for count in range(10_000):
            talk = llm.conversation(f"{seed} {count} " + "You answer with one shell command. " * 12)
            name = f"{random.randrange(4)}.safetensors"
            for _ in range(random.randrange(1, 4)):
                talk.say(random.choice(["list files", "print the date"]), GREEDY, max_tokens=4)
                talk.save(folder / name)
                said = {"saved": name, "messages": talk.messages}
                print(json.dumps(said), flush=True)
            talk.close()
            llm.release()  # waits for what is being written
            print(json.dumps({"kept": sorted(path.name for path in (folder / "kv").glob("*.safetensors"))}), flush=True)


def run_and_kill(model: str, folder: Path, seed: int, seconds: float) -> Iterator[dict[str, object]]:
    """Starts such a process, kills it so long after its first line, and gives the lines that came."""
    command = [sys.executable, "-m", "tests.benchmarks.soak_killed", model, os.fspath(folder), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        watchdog = threading.Timer(WAIT_S, child.kill)
        watchdog.start()
        first = child.stdout.readline()
        killer = threading.Timer(seconds, child.kill)
        killer.start()
        lines = [first, *child.stdout]
        watchdog.cancel()
        killer.join()
    if not first:
        raise Wrong("the process that was to be killed ended by itself before")
    for line in lines:
        if line.endswith("\n"):  # the last one may be half a line
            yield json.loads(line)


def check_killed(model: str, alone: Alone, folder: Path, seed: int, seconds: float) -> dict[str, int]:
    """One killed process: raises Wrong when a file was lost or is half written. Gives how many files were looked at."""
    saved: dict[str, list[object]] = {}
    kept: set[str] = set()
    for line in run_and_kill(model, folder, seed, seconds):
        if "saved" in line:
            saved.setdefault(str(line["saved"]), []).append(line["messages"])
        else:
            kept |= set(line["kept"])  # type: ignore[arg-type]  # a list of names
    found = {path.name for path in (folder / "kv").iterdir()}
    if lost := kept - found:
        raise Wrong(f"reported as kept and gone: {sorted(lost)[:3]}")
    for name in found:
        if not name.endswith(PARTIAL):
            list(open_state(folder / "kv" / name).read())  # raises PackageError for a damaged one
    opened = _check_conversations(model, alone, folder, saved)
    return {"kills": 1, "blocks": len(found), "conversations": opened}


def _check_conversations(model: str, alone: Alone, folder: Path, saved: dict[str, list[object]]) -> int:
    """Each is as it was reported last, or newer; and goes on rightly."""
    with embedllm.load(model, device="cpu", cache_dir=folder / "kv") as llm:
        for name, reported in saved.items():
            with llm.open_conversation(folder / name) as talk:
                if talk.messages in reported[:-1] and talk.messages != reported[-1]:
                    raise Wrong(f"'{name}' is older than what was reported as saved")
                prompt = llm.request([*talk.messages, {"role": "user", "content": "and now?"}]).prompt
                alone.check(prompt, talk.say("and now?", GREEDY, max_tokens=3), is_greedy=True)
    return len(saved)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
