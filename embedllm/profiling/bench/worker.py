"""The process that holds one engine: lines of JSON in, lines of JSON out. Started by `process`.

    python -m embedllm.profiling.bench.worker '{"engine": "embedllm", "path": "demo", ...}'

Its first line tells the opened engine and what opening it took. Then each line that it reads is run and answered:
{"do": "run" | "structured", "tokens": [...], "count": N} or {"do": "batch", "prompts": [[...], ...], "count": N}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from embedllm.profiling.bench.energy import Meter, open_meter
from embedllm.profiling.bench.memory import peak_bytes, private_bytes

if TYPE_CHECKING:
    from embedllm.profiling.bench.engine import Engine


def open_engine(config: Mapping[str, Any]) -> Engine:
    """config: a Spec's fields, and threads, capacity, exact and prefix_cache."""
    from embedllm.profiling.bench import specs

    if config["engine"] == specs.OURS:
        from embedllm.profiling.bench.ours import Ours

        return Ours(config["path"], device=config["device"], threads=config["threads"], exact=config["exact"],
                    prefix_cache=config["prefix_cache"])  # fmt: skip
    from embedllm.profiling.bench import peers

    kinds = {specs.GENAI: peers.Genai, specs.OPENVINO_GENAI: peers.OpenVINOGenai, specs.LLAMA_CPP: peers.llama_cpp,
             specs.TRANSFORMERS: peers.Transformers}  # fmt: skip
    return kinds[config["engine"]](config["path"], threads=config["threads"], capacity=config["capacity"])


def answer(engine: Engine, request: Mapping[str, Any], meter: Meter | None) -> dict[str, object]:
    """Runs what is asked for: seconds, memory and, where there are counters, joules."""
    before = meter.read() if meter else ()
    if request["do"] == "batch":
        times = [engine.batch(request["prompts"], request["count"])]
    elif request["do"] == "structured":
        times = engine.structured(request["tokens"], request["count"])
    else:
        times = engine.run(request["tokens"], request["count"])
    joules = meter.joules(before, meter.read()) if meter else None
    return {"times": times, "joules": joules, "peak_bytes": peak_bytes(), "private_bytes": private_bytes()}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends us
    # what a runtime prints must not come between the answers
    out: IO[str] = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        meter = open_meter()
        energy = meter if isinstance(meter, Meter) else None
        start = time.perf_counter()
        engine = open_engine(json.loads(sys.argv[1]))
        opened = {"load_s": time.perf_counter() - start, "peak_bytes": peak_bytes(), "private_bytes": private_bytes()}
        say(out, {"about": asdict(engine.about), **opened})
        for line in sys.stdin:
            say(out, answer(engine, json.loads(line), energy))
    except Exception as error:  # noqa: BLE001  # of any engine; reported to the parent, and the end of this process
        traceback.print_exc()
        say(out, {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"})
        sys.exit(1)


def say(out: IO[str], message: Mapping[str, object]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
