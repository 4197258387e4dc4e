"""What a soak asks of a model: requests of every kind, at random, each checked."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypedDict

import embedllm
from embedllm.generation.completion import collect
from embedllm.generation.options import Speculate
from tests.benchmarks.soak_checks import Alone, Wrong

SYSTEMS = ["You answer with one shell command.", "You answer with one shell command. " * 12, "Be short. " * 60]
TASKS = ["list files", "show hidden files", "count the lines of notes.txt", "find large files", "print the date",
         "write the numbers from 1 to 30", "copy a to b, then b to c, then c to d"]  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string", "maxLength": 12}, "safe": {"type": "boolean"}},
    "required": ["command", "safe"],
    "additionalProperties": False,
}
NOT_FOLLOWED = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "object", "unevaluatedItems": 3}},
}
FORMATS: list[tuple[object, Callable[[str], bool]]] = [
    ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, lambda text: "safe" in json.loads(text)),
    (["yes", "no", "perhaps"], lambda text: text in ("yes", "no", "perhaps")),
    (re.compile("[a-c]{3,6}-[0-9]+"), lambda text: re.fullmatch("[a-c]{3,6}-[0-9]{1,}", text) is not None),
]


class Options(TypedDict, total=False):
    """What is varied of every kind of request."""

    max_tokens: int
    speculate: Speculate
    priority: int


@dataclass
class Soak:
    """A model under load, and what became of the requests."""

    llm: embedllm.Model
    alone: Alone
    folder: Path  # for conversations
    counts: Counter[str] = field(default_factory=Counter)

    def act(self, random: Random) -> None:
        """One request or a few that belong together, in this thread. Raises what must not happen."""
        kinds = [self._generate, self._stream, self._structured, self._batch, self._talk, self._refused, self._nested,
                 self._several, self._release]  # fmt: skip
        kind = random.choices(kinds, [6, 6, 3, 2, 4, 2, 2, 1, 0.3])[0]
        self._counted(kind.__name__, lambda: kind(random))

    async def aact(self, random: Random) -> None:
        """As act(), in an event loop."""
        prompt, sampling, options = self._asked(random)
        tokens = self.llm.request(prompt, sampling, **options).prompt
        limit = random.choice([0.02, 0.2, None, None])
        chunks: list[embedllm.Chunk] = []

        async def read() -> None:
            async for chunk in self.llm.astream(prompt, sampling, **options):
                chunks.append(chunk)
                if random.random() < 0.02:
                    break

        try:
            await asyncio.wait_for(read(), limit)
            self.counts["astream"] += 1
        except TimeoutError:
            self.counts["astream, task cancelled"] += 1
        except embedllm.Busy:
            self.counts["astream, busy"] += 1
            await asyncio.sleep(0.05)
        if chunks:
            await asyncio.to_thread(self._check, tokens, collect(chunks), sampling)

    def _counted(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
            self.counts[name.strip("_")] += 1
        except embedllm.Busy as error:
            if (
                error.running > self.llm.runner.scheduler.max_running
                or error.waiting < self.llm.runner.scheduler.max_waiting
            ):
                raise
            self.counts["busy"] += 1
            threading.Event().wait(0.05)

    def _asked(self, random: Random) -> tuple[list[embedllm.Message], embedllm.Sampling, Options]:
        messages: list[embedllm.Message] = [{"role": "system", "content": random.choice(SYSTEMS)}]
        for _ in range(random.choice([0, 0, 0, 1, 3])):
            messages += [{"role": "user", "content": random.choice(TASKS)}, {"role": "assistant", "content": "ls -l"}]
        messages.append({"role": "user", "content": random.choice(TASKS)})
        options = Options(
            max_tokens=random.choice([1, 8, 24, 60]),
            speculate=random.choice(["off", "lookup", "auto"]),
            priority=random.randrange(-1, 2),
        )
        return messages, _sampling(random), options

    def _check(self, prompt: Sequence[int], reply: embedllm.Completion, sampling: embedllm.Sampling) -> None:
        self.alone.check(prompt, reply, is_greedy=sampling == embedllm.Sampling(temperature=0))
        tokens = reply.tokens[:-1] if isinstance(reply.stopped_by, int) else reply.tokens
        text = self.llm.tokenizer.decode(tokens)
        is_whole = reply.finish_reason != "cancelled"  # else a character may be incomplete
        if not (reply.reasoning or reply.tool_calls) and (text != reply.text if is_whole else reply.text not in text):
            raise Wrong(f"the text is {reply.text!r}, its tokens are {text!r}")

    def _generate(self, random: Random) -> None:
        prompt, sampling, options = self._asked(random)
        reply = self.llm.generate(prompt, sampling, **options)
        self._check(self.llm.request(prompt, **options).prompt, reply, sampling)

    def _stream(self, random: Random) -> None:
        """Cancelled by a thread, left early, or read to its end."""
        prompt, sampling, options = self._asked(random)
        cancel, leave = embedllm.Cancel(), random.choice([1, 5, 99, 99])
        timer = threading.Timer(random.random() * 0.5, cancel.cancel) if random.random() < 0.5 else None
        if timer is not None:
            timer.start()
        chunks: list[embedllm.Chunk] = []
        stream = self.llm.stream(prompt, sampling, cancel=cancel, **options)
        if random.random() < 0.05:
            return  # never begun
        for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == leave:
                break
        stream.close()
        if timer is not None:
            timer.cancel()
            timer.join()
        self._check(self.llm.request(prompt, **options).prompt, collect(chunks), sampling)

    def _structured(self, random: Random) -> None:
        prompt, sampling, options = self._asked(random)
        wanted, holds = random.choice(FORMATS)
        options["max_tokens"] = 40
        reply = self.llm.chat(prompt, sampling, response_format=wanted, **options)  # type: ignore[arg-type]
        self.alone.check(self.llm.request(prompt, **options).prompt, reply, is_greedy=False)
        if reply.finish_reason == "stop" and not holds(reply.text):
            raise Wrong(f"{reply.text!r} is not what {wanted} asks for")

    def _batch(self, random: Random) -> None:
        asked = [self._asked(random) for _ in range(random.randrange(2, 6))]
        _, sampling, options = asked[0]
        replies = self.llm.generate_batch([prompt for prompt, _, _ in asked], sampling, **options)
        for (prompt, _, _), reply in zip(asked, replies, strict=True):
            self._check(self.llm.request(prompt, **options).prompt, reply, sampling)

    def _talk(self, random: Random) -> None:
        """Turns, a file, and two that go on from it apart."""
        path = self.folder / f"{threading.get_ident()}.safetensors"
        with self.llm.conversation(random.choice(SYSTEMS)) as talk:
            for _ in range(random.randrange(1, 4)):
                self._turn(talk, random)
            talk.save(path)
            with self.llm.open_conversation(path) as branch:
                if branch.messages != talk.messages:
                    raise Wrong("a saved conversation came back with other messages")
                self._turn(branch, random)
                self._turn(talk, random)
                self._turn(branch, random)

    def _turn(self, talk: embedllm.Conversation, random: Random) -> None:
        said, sampling = random.choice(TASKS), _sampling(random)
        prompt = self.llm.request([*talk.messages, {"role": "user", "content": said}]).prompt
        try:
            reply = talk.say(said, sampling, max_tokens=random.choice([4, 20]))
        except embedllm.ContextFull:
            return
        self._check(prompt, reply, sampling)

    def _refused(self, random: Random) -> None:
        """Errors that are to come, and leave nothing behind."""
        wrong = random.randrange(3)
        try:
            if wrong == 0:
                self.llm.chat([{"role": "user", "content": "x"}], response_format=NOT_FOLLOWED)
            elif wrong == 1:
                self.llm.generate([5] * (self.llm.context + random.randrange(9)))
            else:
                self.llm.generate("x", max_tokens=0)
        except (ValueError, embedllm.ContextFull):
            return
        raise Wrong(f"a wrong request ({wrong}) was not refused")

    def _nested(self, random: Random) -> None:
        """Two streams read in turn, and a call in the middle."""
        asked = [self._asked(random) for _ in range(2)]
        streams = [self.llm.stream(prompt, sampling, **options) for prompt, sampling, options in asked]
        found: list[list[embedllm.Chunk]] = [[], []]
        for pair in zip(*streams, strict=False):
            for chunks, chunk in zip(found, pair, strict=True):
                chunks.append(chunk)
            if random.random() < 0.05:
                self._generate(random)
        for stream in streams:
            stream.close()
        for (prompt, sampling, options), chunks in zip(asked, found, strict=True):
            if chunks:
                self._check(self.llm.request(prompt, **options).prompt, collect(chunks), sampling)

    def _several(self, random: Random) -> None:
        prompt, _, options = self._asked(random)
        tokens = self.llm.request(prompt, **options).prompt
        if random.random() < 0.5:
            sampling = embedllm.Sampling(temperature=0.8, seed=random.randrange(99))
            replies = self.llm.generate_n(prompt, 3, sampling, **options)
        else:
            replies = self.llm.beam_search(prompt, 3, max_tokens=8)
        for reply in replies:
            self.alone.check(tokens, reply, is_greedy=False)

    def _release(self, random: Random) -> None:
        self.llm.release()


def _sampling(random: Random) -> embedllm.Sampling:
    return random.choice(
        [
            embedllm.Sampling(temperature=0),
            embedllm.Sampling(temperature=0.8, top_p=0.9, seed=random.randrange(999)),
            embedllm.Sampling(temperature=1.2, min_p=0.05),
            embedllm.Sampling(temperature=0.7, repetition_penalty=1.1, top_k=20, seed=1),
        ]
    )
