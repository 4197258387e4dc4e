"""The part of tests/golden/web_rule.json that has text in it: stop strings, streams of text, whole generations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from embedllm.cancel import Cancel
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.generation import Generation
from embedllm.generation.loop import run
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler
from embedllm.text.protocols import TextCodec
from embedllm.text.stream import StopStrings, TextStream
from tests.support.fakes import END, VOCABULARY, Bytes

if TYPE_CHECKING:
    from embedllm.types import F32

# A vocabulary of pieces and byte tokens, for ToyCodec; its first token is special.
PIECES = ["<s>", "Hel", "lo", " ", "wörld", "\u65e5", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xE6>", "<0x0A>", "!"]

MakeRow: TypeAlias = "Callable[[str, int, int], F32]"


class ToyCodec:
    """PIECES as a codec: a run of byte tokens is its text, or a replacement character a byte if it is not UTF-8."""

    special_tokens = frozenset({0})

    def encode(self, text: str, *, special: bool) -> list[int]:
        raise NotImplementedError

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        known = [PIECES[t] for t in tokens if 0 <= t < len(PIECES) and (special or t not in self.special_tokens)]
        runs = re.findall(r"((?:<0x..>)+)|(.+?)(?=<0x|$)", "".join(known), re.DOTALL)
        return "".join(_run_text(of_bytes) if of_bytes else text for of_bytes, text in runs)

    def token_text(self, token: int) -> str | None:
        return PIECES[token] if 0 <= token < len(PIECES) else None

    def appended_text(self, token: int) -> str | None:
        return None


def _run_text(run: str) -> str:
    raw = bytes.fromhex(run.replace("<0x", "").replace(">", ""))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(raw)


CODECS: dict[str, TextCodec] = {"bytes": Bytes(), "byte tokens": Bytes(as_byte_tokens=True), "pieces": ToyCodec()}
_MIXED = "Ünïcödé \U0001f600\U0001f1e9\U0001f1ea 日本語 end"


def stops() -> list[dict[str, object]]:
    """Texts in pieces, and what stop strings let through."""
    cases = [
        (["STOP"], ["no match ", "at S", "T", "OX all"]),
        (["STOP"], ["before ST", "OP after", " it"]),
        (["ab", "abc"], ["xa", "bc"]),
        (["abc", "b"], ["xa", "b", "d"]),
        (["aab"], ["a", "a", "a", "a", "b", "c"]),
        (["\n\n", "User:"], ["one\n", "two\nUs", "er", ": hi"]),
        (["\U0001f600!"], ["so \U0001f600", "\U0001f600", "! x"]),
        (["abcd", "bx"], ["ab", "x"]),
        (["abcd", "bc"], ["abc", "e"]),
        (["abcd", "bc"], ["abc"]),
        ([], ["anything", " goes"]),
    ]
    return [_stop(strings, pieces) for strings, pieces in cases]


def _stop(strings: list[str], pieces: list[str]) -> dict[str, object]:
    finder = StopStrings(strings)
    out = [finder.push(piece) for piece in pieces]
    return {"strings": strings, "pieces": pieces, "out": out, "rest": finder.flush(), "matched": finder.matched}


def streams() -> list[dict[str, object]]:
    """Tokens one by one, and the text that is certain after each."""
    mixed = list(_MIXED.encode())
    broken = [0xE6, 0x41, 0xF0, 0x9F, 0x98, 0xC3, 0xC3, 0xA9, 0xFF, 0xE6, 0x97]
    pieces = [0, 1, 2, 3, 4, 5, 12, 3, 6, 7, 8, 9, 1, 99, 2, 6, 7, 10, 3, 11, 5, 0, 4, 11, 10]
    cases = [("bytes", mixed, False), ("bytes", broken, False), ("bytes", [72, END, 105, END], True)]
    cases += [("bytes", [*mixed[:9], END, *mixed[9:]], False), ("byte tokens", mixed, False)]
    cases += [("byte tokens", [*mixed[:12], END, *broken], False)]
    cases += [("pieces", pieces, False), ("pieces", pieces, True)]
    # the window is cut at each byte of a character
    cases += [("bytes", [*("a" * start + "\U0001f600" * 8).encode()], False) for start in range(4)]
    return [_stream(*case) for case in cases]


def _stream(codec: str, tokens: list[int], special: bool) -> dict[str, object]:
    stream = TextStream(CODECS[codec], special=special)
    out = [stream.push(token) for token in tokens]
    rest = stream.flush()
    assert "".join(out) + rest == CODECS[codec].decode(tokens, special=special)
    return {"codec": codec, "tokens": tokens, "special": special, "out": out, "rest": rest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One generation; at each step the row has 9 added to the logit of the token that the script says."""

    script: list[int]
    sampling: dict[str, float]
    stops: list[str]
    limit: int
    limit_reason: str = "length"
    top_count: int = 0
    cancel_after: int | None = None  # chunks


def generations(make_row: MakeRow) -> list[dict[str, object]]:
    """Whole generations, chunk by chunk."""
    text = [*f"Say: {_MIXED}. Then STOP and go on".encode()]
    greedy: dict[str, float] = {"temperature": 0}
    drawn: dict[str, float] = {"temperature": 1.5, "top_p": 0.95, "presence_penalty": 1, "seed": 5}
    cases = [
        Case(script=[*text, END], sampling=greedy, stops=[], limit=200),
        Case(script=[*text, END], sampling=greedy, stops=["STOP", "go"], limit=200, top_count=3),
        Case(script=text, sampling=greedy, stops=["STOP"], limit=9, limit_reason="context"),
        Case(script=[*b"one ST", END], sampling=greedy, stops=["STOP"], limit=50),
        Case(script=[*b"one ST", END], sampling=greedy, stops=["ST"], limit=50),
        Case(script=text, sampling=greedy, stops=["STOP"], limit=200, cancel_after=12),
        Case(script=text, sampling=greedy, stops=[], limit=200, cancel_after=0),
        Case(script=text, sampling=drawn, stops=["no"], limit=40, top_count=2),
    ]
    return [{**asdict(case), "chunks": _chunks(make_row, case)} for case in cases]


def _chunks(make_row: MakeRow, case: Case) -> list[list[object]]:
    steps: Iterator[int] = iter(range(-1, 1000))  # the first piece of the prompt comes before the script
    cancel = Cancel()
    generation = Generation(
        sampler=Sampler(Sampling(**case.sampling), [1, 2, 3]),  # type: ignore[arg-type]  # `seed` is an int
        text=TextStream(Bytes()),
        stops=StopStrings(case.stops),
        stop_tokens={END},
        limit=case.limit,
        limit_reason=case.limit_reason,
        top_count=case.top_count,
        statistics=Statistics(prompt_tokens=3, cached_tokens=0),
    )

    class Scripted:
        """A sequence that is fed one token at a time."""

        def feed(self, tokens: Sequence[int]) -> NumpyLogits:
            step = next(steps)
            row = make_row("normal", VOCABULARY, 500 + step)
            row[case.script[step % len(case.script)]] += 9
            return NumpyLogits(row)

        def feed_all(self, tokens: Sequence[int]) -> Sequence[NumpyLogits]:
            raise NotImplementedError

        def rewind_by(self, count: int) -> None:
            raise NotImplementedError

    if case.cancel_after == 0:
        cancel.cancel()
    chunks: list[Chunk] = []
    for chunk in run(generation, Scripted(), [[1, 2], [3]], cancel):
        chunks.append(chunk)
        if len(chunks) == case.cancel_after:
            cancel.cancel()
    return [_shown(chunk) for chunk in chunks]


def _shown(chunk: Chunk) -> list[object]:
    """A chunk without what every one of them could have: the times."""
    logprob = None if chunk.logprob is None else round(chunk.logprob, 6)
    top = [[pick.token, round(pick.logprob, 6)] for pick in chunk.top_logprobs]
    return [chunk.text, chunk.token, logprob, top, chunk.finish_reason, chunk.stopped_by, chunk.statistics.tokens]
