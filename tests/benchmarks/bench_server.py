"""`embedllm serve` against the library in this process, under load, and beside llama-server (xllamacpp).

    python tests/benchmarks/bench_server.py overhead [--model demo] [--rounds 7]
    python tests/benchmarks/bench_server.py throughput [--model demo] [--streams 8] [--rounds 5]
    python tests/benchmarks/bench_server.py load [--model demo] [--clients 64] [--seconds 60]
    python tests/benchmarks/bench_server.py wake --model FOLDER [--rounds 7]
    python tests/benchmarks/bench_server.py compare --model FOLDER --gguf FILE [--clients 4] [--rounds 3]

The server is a process of its own, and the client speaks HTTP over plain sockets, so that it costs little. overhead:
one stream, milliseconds a token more than the library's. throughput: tokens per second of several streams as a share of
generate_batch's. load: clients that ask one question after the other. wake: the first token of a model that has been
unloaded, beside that of the same prompt asked again. compare: the same requests to both servers;
FOLDER and FILE hold the same model. Rounds take turns; printed are medians over the rounds, and percentiles of all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import embedllm

WAIT_S = 300.0
QUESTIONS = ("list files by size", "count the lines of all python files", "show the size of each folder",
             "find files changed today", "how do I extract a tar.gz archive?", "print the free memory",
             "sort a file and remove duplicates", "which process uses port 80?")  # fmt: skip
_LLAMA = """
import sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.n_ctx, params.cpuparams.n_threads = 2048 * params.n_parallel, int(sys.argv[4])
params.verbosity = 0
server = xllamacpp.Server(params)
print("ready", flush=True)
threading.Event().wait()
"""


@dataclass(slots=True)
class Reply:
    """What a client saw of one stream, in seconds of a monotonic clock."""

    status: int = 0
    sent_s: float = 0.0
    times_s: list[float] = field(default_factory=list)  # of the events with news
    end_s: float = 0.0
    is_whole: bool = False

    @property
    def first_s(self) -> float:
        return self.times_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)]


@contextmanager
def process(arguments: Sequence[str]) -> Iterator[None]:
    """A server; ready when it has printed a line."""
    running = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert running.stdout is not None
    try:
        for line in running.stdout:
            if line.startswith(("serving ", "ready")):
                break
        else:
            raise SystemExit(f"the server did not start: {arguments}")
        yield
    finally:
        running.terminate()
        running.stdout.close()
        running.wait()


def embedllm_server(model: str, port: int, *more: str) -> contextmanager[None]:  # type: ignore[type-arg]  # what the decorator makes
    quiet = "import sys, logging; sys.argv[0] = 'embedllm'; from embedllm.cli import main as m; " \
            "import embedllm.cli.commands.serve as s; s._log_to_stderr = lambda: None; m.main()"  # fmt: skip
    return process(["-c", quiet, "serve", f"model={model}", "--port", str(port), *more])  # type: ignore[return-value]  # as above


async def ask(port: int, prompt: str | list[int], tokens: int, *, logprobs: bool = False) -> Reply:
    """One stream of exactly `tokens` tokens, where the server follows min_tokens or ignore_eos.

    prompt: a question; or token ids, which are continued. logprobs: each token of these is an event, whatever its text.
    """
    given: dict[str, object] = {"model": "model", "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True,
                                "stream": True, "temperature": 0, "speculate": "off"}  # fmt: skip
    is_chat = isinstance(prompt, str)
    given |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    given |= {"logprobs": 1} if logprobs else {}
    path, body = "/v1/chat/completions" if is_chat else "/v1/completions", json.dumps(given).encode()
    reply = Reply()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    reply.sent_s = time.perf_counter()
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    try:
        reply.status = int((await reader.readline()).split()[1])
        while line := await reader.readline():
            if line.startswith(b"data: {") and b'"role":' not in line and b'"delta":{}' not in line:
                reply.times_s.append(time.perf_counter())
            elif line.startswith(b"data: [DONE]"):
                reply.is_whole, reply.end_s = True, time.perf_counter()
    except (OSError, IndexError):
        reply.status = 0
    writer.close()
    return reply


async def together(
    port: int, prompts: Sequence[str | list[int]], tokens: int, *, logprobs: bool = False
) -> list[Reply]:
    return await asyncio.gather(*(ask(port, prompt, tokens, logprobs=logprobs) for prompt in prompts))


def id_prompts(count: int, place: int) -> list[list[int]]:
    """Prompts of 64 tokens, others in each round."""
    return [[1000 + 100 * place + 7 * one + at % 50 for at in range(64)] for one in range(count)]


def rate(replies: Sequence[Reply], tokens: int) -> float:
    """Tokens per second of all."""
    return len(replies) * tokens / (max(r.end_s for r in replies) - min(r.sent_s for r in replies))


def percentiles(values_s: Sequence[float]) -> str:
    ordered = sorted(values_s)
    return ", ".join(f"p{share} {1e3 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)]:.1f} ms"
                     for share in (50, 95, 99))  # fmt: skip


def overhead(model: str, port: int, rounds: int, tokens: int) -> None:
    """One stream in the library and over HTTP, in turns."""
    more: list[float] = []
    with embedllm_server(model, port), embedllm.load(model) as llm:
        for place in range(rounds + 1):
            question = QUESTIONS[place % len(QUESTIONS)]
            began_s = time.perf_counter()
            times_s = [
                time.perf_counter()
                for _ in llm.stream(
                    [{"role": "user", "content": question}],
                    temperature=0.0,
                    max_tokens=tokens,
                    min_tokens=tokens,
                    speculate="off",
                )
            ]
            own = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
            reply = asyncio.run(ask(port, question, tokens))
            http = (reply.times_s[-1] - reply.times_s[0]) / (len(reply.times_s) - 1)
            assert reply.is_whole, reply.status
            if place:  # the first one warms up
                more.append(http - own)
                print(f"  library {1e3 * own:.3f} ms a token, first {1e3 * (times_s[0] - began_s):.1f} ms; server "
                      f"{1e3 * http:.3f} ms, first {1e3 * reply.first_s:.1f} ms")  # fmt: skip
    print(f"overhead: median {1e3 * statistics.median(more):.3f} ms a token")


def throughput(model: str, port: int, streams: int, rounds: int, tokens: int) -> None:
    """Several streams, as many calls of the library at the same time, and generate_batch, in turns."""
    of_calls: list[float] = []
    of_batch: list[float] = []
    options = {"temperature": 0.0, "max_tokens": tokens, "min_tokens": tokens, "speculate": "off"}
    with embedllm_server(model, port), embedllm.load(model) as llm:

        async def calls(prompts: list[list[int]]) -> None:
            await asyncio.gather(*(llm.agenerate(prompt, **options) for prompt in prompts))  # type: ignore[arg-type]  # their own types

        for place in range(rounds + 1):
            prompts = id_prompts(streams, place)
            began_s = time.perf_counter()
            llm.generate_batch(prompts, **options)  # type: ignore[arg-type]  # as above
            batch_s = time.perf_counter() - began_s
            asyncio.run(calls([[one + 40 for one in prompt] for prompt in prompts]))
            calls_s = time.perf_counter() - began_s - batch_s
            replies = asyncio.run(together(port, prompts, tokens))
            assert all(reply.is_whole for reply in replies)
            if place:
                found = rate(replies, tokens)
                of_batch.append(found * batch_s / (streams * tokens))
                of_calls.append(found * calls_s / (streams * tokens))
                print(
                    f"  server {found:.1f} tokens/s, {of_calls[-1]:.3f} of calls, {of_batch[-1]:.3f} of generate_batch"
                )
    print(f"throughput, {streams} streams: median {statistics.median(of_calls):.3f} of calls at the same time, "
          f"{statistics.median(of_batch):.3f} of generate_batch")  # fmt: skip


def load(model: str, port: int, clients: int, seconds: float, tokens: int) -> None:
    """Clients that ask on and on."""
    replies: list[Reply] = []

    async def run() -> None:
        end_s = time.perf_counter() + seconds

        async def client(place: int) -> None:
            while time.perf_counter() < end_s:
                replies.append(await ask(port, QUESTIONS[place % len(QUESTIONS)], tokens))
                if replies[-1].status == 429:
                    await asyncio.sleep(1)

        await asyncio.gather(*(client(place) for place in range(clients)))

    with embedllm_server(model, port):
        asyncio.run(run())
    whole = [reply for reply in replies if reply.is_whole]
    broken = [reply for reply in replies if reply.status == 200 and not reply.is_whole]
    print(f"load: {clients} clients, {seconds:.0f} s: statuses {dict(Counter(reply.status for reply in replies))}, "
          f"{len(broken)} broken streams, {len(whole) * tokens / seconds:.0f} tokens/s")  # fmt: skip
    print(f"  first token: {percentiles([reply.first_s for reply in whole])}")
    print(f"  gaps: {percentiles([gap for reply in whole for gap in reply.gaps_s])}")


def wake(model: str, port: int, rounds: int) -> None:
    """A model that sleeps beside a pinned one, asked and asked again."""
    asleep: list[float] = []
    awake: list[float] = []
    with embedllm_server(model, port, "other=demo", "--pin", "other", "--idle-unload", "1"):
        for place in range(rounds + 1):
            while _state(port) != "asleep":
                time.sleep(0.2)
            prompt = id_prompts(1, place)[0]
            found = [asyncio.run(ask(port, prompt, 2, logprobs=True)) for _ in range(2)]
            assert all(reply.is_whole for reply in found)
            if place:  # the first one brings the files into memory
                for times, reply in zip((asleep, awake), found, strict=True):
                    times.append(reply.first_s)
                print(f"  first token: asleep {found[0].first_s:.2f} s, awake {found[1].first_s:.2f} s")
    print(f"wake: median {statistics.median(asleep):.2f} s asleep, {statistics.median(awake):.2f} s awake")


def _state(port: int) -> str:
    """Of the model, as the server lists it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/model") as answer:
        return str(json.load(answer)["state"])


def compare(model: str, gguf: str, port: int, clients: int, rounds: int, tokens: int, threads: int) -> None:
    """Both servers run; each round asks one, then the other."""
    names = {"embedllm": port, "llama-server": port + 1}
    found: dict[str, list[Reply]] = {name: [] for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as running:
        running.enter_context(embedllm_server(model, port))
        running.enter_context(process(["-c", _LLAMA, gguf, str(port + 1), str(clients), str(threads)]))  # type: ignore[arg-type]  # as above
        for place in range(rounds + 1):
            for name, where in names.items():
                replies = asyncio.run(together(where, id_prompts(clients, place), tokens, logprobs=True))
                assert all(reply.is_whole for reply in replies), (name, [reply.status for reply in replies])
                if place:
                    found[name] += replies
                    rates[name].append(rate(replies, tokens))
    for name, replies in found.items():
        print(f"{name}: {clients} clients, median {statistics.median(rates[name]):.1f} tokens/s")
        print(f"  first token: {percentiles([reply.first_s for reply in replies if reply.times_s])}")
        print(f"  gaps: {percentiles([gap for reply in replies for gap in reply.gaps_s])}")
    ratios = [one / other for one, other in zip(rates["embedllm"], rates["llama-server"], strict=True)]
    print(f"embedllm / llama-server: median {statistics.median(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "throughput", "load", "wake", "compare"])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--gguf")
    parser.add_argument("--port", type=int, default=8399)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    match given.what:
        case "overhead":
            overhead(given.model, given.port, given.rounds, given.tokens)
        case "throughput":
            throughput(given.model, given.port, given.streams, given.rounds, given.tokens)
        case "load":
            load(given.model, given.port, given.clients or 64, given.seconds, given.tokens)
        case "wake":
            wake(given.model, given.port, given.rounds)
        case _:
            compare(
                given.model,
                given.gguf or given.model,
                given.port,
                given.clients or 4,
                given.rounds,
                given.tokens,
                given.threads,
            )


if __name__ == "__main__":
    main()
