"""Beam search: by hand, against a search of all replies, on sequences of models, and against transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm.backends.base import MovesState
from embedllm.cancel import Cancel
from embedllm.export import Recipe, convert
from embedllm.generation.beam_runner import BeamRunner
from embedllm.generation.beam_search import BeamSearch
from embedllm.generation.chunk import Chunk
from embedllm.generation.engine_loop import CallerThread
from embedllm.generation.request import Request
from embedllm.generation.runner import Runner
from embedllm.kv_cache.sequence_pool import SequencePool
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from tests.support.fakes import Bytes, FakeBatchEngine, FakeEngine
from tests.support.tiny import tiny_checkpoint

SHARES = {  # of the tokens 0, 1 and END after what was said: the best first token leads to worse replies
    (): (0.5, 0.4, 0.1),
    (0,): (0.4, 0.3, 0.3),
    (1,): (0.05, 0.05, 0.9),
}
END = 2


def after(tokens: Sequence[int]) -> NumpyLogits:
    return NumpyLogits(np.log(np.array(SHARES.get(tuple(tokens), (0.4, 0.3, 0.3)), dtype=np.float32)))


def searched(**options: object) -> list[tuple[tuple[int, ...], float]]:
    search = BeamSearch(stop_tokens={END}, **options)  # type: ignore[arg-type]  # by name
    while not search.is_done:
        search.accept([after(beam.tokens) for beam in search.running])
    return [(found.beam.tokens, found.score) for found in search.finished]


def test_two_beams_find_what_greedy_misses() -> None:
    assert searched(beams=1, limit=2, length_penalty=0.0)[0][0] == (0, 0)  # 0.5 * 0.4
    tokens, score = searched(beams=2, limit=2, length_penalty=0.0)[0]
    assert (tokens, score) == ((1, END), pytest.approx(math.log(0.4 * 0.9), abs=1e-6))


def test_the_length_penalty_divides_by_the_length() -> None:
    assert searched(beams=3, limit=2, length_penalty=1.0)[0] == ((1, END), pytest.approx(math.log(0.36) / 2, abs=1e-6))
    # the logs of 0.36 and 0.1 times their lengths: the shorter one is less negative only then
    found = dict(searched(beams=3, limit=2, length_penalty=-3.0))
    assert found[(END,)] == pytest.approx(math.log(0.1), abs=1e-6)
    assert found[(1, END)] == pytest.approx(math.log(0.36) * 8, abs=1e-5)


def test_enough_beams_find_the_best_of_all_replies() -> None:
    logits = np.random.default_rng(5).standard_normal((100, 4)).astype(np.float32)
    ids = {tokens: place for place, tokens in enumerate(t for n in range(4) for t in product(range(4), repeat=n))}

    def row(tokens: Sequence[int]) -> NumpyLogits:
        return NumpyLogits(logits[ids[tuple(tokens)]])

    search = BeamSearch(beams=64, limit=3, length_penalty=0.0, stop_tokens={3}, early_stopping="never")
    while not search.is_done:
        search.accept([row(beam.tokens) for beam in search.running])
    scores: dict[tuple[int, ...], float] = {}
    for n in (1, 2, 3):
        for reply in product(range(4), repeat=n):
            if 3 not in reply[:-1] and (n == 3 or reply[-1] == 3):
                steps = [row(reply[:at]) for at in range(n)]
                scores[reply] = sum(
                    step.values([token])[0] - step.logsumexp() for step, token in zip(steps, reply, strict=True)
                )
    expected = sorted(scores, key=lambda reply: -scores[reply])[:10]
    assert [found.beam.tokens for found in search.finished[:10]] == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"beams": 0}, "beams is 0"), ({"length_penalty": math.nan}, "length_penalty is nan"),
     ({"early_stopping": "no"}, "early_stopping is 'no'"), ({"early_stopping": 1}, "early_stopping is 1"),
     ({"length_penalty": "1"}, "length_penalty is '1'")],
)  # fmt: skip
def test_options_out_of_range_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        searched(**{"beams": 2, "limit": 2, **wrong})


def test_beams_on_sequences_that_move_no_state_feed_what_they_lack() -> None:
    engine = FakeEngine()
    assert not isinstance(engine.open(), MovesState)
    search = BeamSearch(beams=3, limit=4, stop_tokens=())
    sequences = SequencePool(engine, CallerThread())
    replies = BeamRunner(search, sequences, [1, 2, 3]).run_directly("length", Cancel())
    assert [reply.finish_reason for reply in replies] == ["length"] * 3
    assert len({reply.tokens for reply in replies}) == 3
    assert sum(not session.closed for session in engine.sessions[1:]) == 1  # the pool's


def test_a_cancelled_search_gives_what_it_followed() -> None:
    cancel = Cancel()
    engine = FakeEngine(during_feed=lambda session: cancel.cancel() if session.position > 4 else None)
    search = BeamSearch(beams=2, limit=9, stop_tokens=())
    replies = BeamRunner(search, SequencePool(engine, CallerThread()), [1, 2, 3]).run_directly("length", cancel)
    assert [reply.finish_reason for reply in replies] == ["cancelled"] * 2


@pytest.mark.parametrize("kind", [FakeEngine, FakeBatchEngine])
def test_a_search_beside_others_finds_what_it_finds_alone_and_feeds_its_beams_together(kind: type[FakeEngine]) -> None:
    def next_token(held: Sequence[int]) -> int:
        return hash(tuple(held)) % 256

    asked = Request(prompt=[1, 2, 3], sampling=Sampling(temperature=0), max_tokens=6, stop=(), stop_tokens=frozenset(),
                    top_count=0)  # fmt: skip
    search = BeamSearch(beams=3, limit=6, stop_tokens=())
    alone = BeamRunner(search, SequencePool(FakeEngine(next_token), CallerThread()), asked.prompt)
    expected = [reply.tokens for reply in alone.run_directly("length", Cancel())]
    runner = Runner(engine := kind(next_token), Bytes())
    beside = runner.stream(replace(asked, max_tokens=50), Cancel())
    chunks: list[Chunk] = [next(beside)]
    found = runner.beam_search(asked, Cancel(), beams=3, length_penalty=1.0, early_stopping=False)
    assert [reply.tokens for reply in found] == expected
    chunks += beside
    assert [chunk.token for chunk in chunks] == [
        chunk.token for chunk in Runner(FakeEngine(next_token), Bytes()).stream(replace(asked, max_tokens=50), Cancel())
    ]
    if isinstance(engine, FakeBatchEngine):
        assert max(engine.runs) >= 3
    assert not any(sequence.is_running for sequence in runner.call(lambda: runner.sequences.sequences))


@pytest.fixture(scope="module")
def folder(tiny_package: Callable[..., Path]) -> Path:
    return tiny_package("qwen3")


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_beams_on_a_model_score_as_their_tokens_fed_anew(folder: Path, device: str) -> None:
    with embedllm.load(folder, device=device) as llm:
        prompt = llm.tokenizer.encode("the quick brown", special=False)
        found = llm.beam_search(prompt, 4, max_tokens=8, stop_tokens=[5])
        assert len(found) == 4
        for reply in found:
            assert reply.finish_reason == ("stop" if reply.tokens[-1] == 5 else "length")
            session = llm.runner.engine.open()
            logits = session.feed(prompt)
            for token, logprob in zip(reply.tokens, reply.logprobs, strict=True):
                assert logits.values([token])[0] - logits.logsumexp() == pytest.approx(logprob, abs=2e-3)
                logits = session.feed([token])
            session.close()
        best = llm.generate(prompt, Sampling(temperature=0), max_tokens=8, stop_tokens=[5])
        one = llm.beam_search(prompt, 1, max_tokens=8, stop_tokens=[5], early_stopping=True)
        assert one[0].tokens == best.tokens


def test_options_that_beams_cannot_follow_are_refused_by_name(folder: Path) -> None:
    with embedllm.load(folder, device="reference") as llm:
        with pytest.raises(ValueError, match="beam_search has no 'stop'"):
            llm.beam_search("x", 2, stop=["a"])
        with pytest.raises(ValueError, match="n is 0"):
            llm.generate_n("x", 0)


def test_n_replies_share_the_prompt_and_are_those_of_the_seeds_in_turn(folder: Path) -> None:
    with embedllm.load(folder, device="reference") as llm:
        prompt = list(range(3, 43))  # long enough that a copy of its KV pays
        found = llm.generate_n(prompt, 3, Sampling(seed=7), max_tokens=6, stop_tokens=[])
        alone = [llm.generate(prompt, Sampling(seed=seed), max_tokens=6, stop_tokens=[]) for seed in (7, 8, 9)]
        assert [reply.tokens for reply in found] == [reply.tokens for reply in alone]
        assert [reply.statistics.cached_tokens for reply in found[1:]] == [len(prompt) - 1] * 2  # read once


@pytest.mark.peer
@pytest.mark.parametrize("stops", [[], [9], [3, 17, 40, 77, 120, 200, 250, 290]])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_beams_equal_those_of_transformers(
    peers: tuple[embedllm.Model, object], stops: list[int], length_penalty: float, early_stopping: bool | str
) -> None:
    torch = pytest.importorskip("torch")
    llm, model = peers
    for seed in range(3):
        prompt = np.random.default_rng(seed).integers(0, 300, 9).tolist()
        ours = llm.beam_search(
            prompt, 3, max_tokens=7, stop_tokens=stops, length_penalty=length_penalty,
            early_stopping=early_stopping,  # type: ignore[arg-type]  # one of the three
        )  # fmt: skip
        theirs = model.generate(  # type: ignore[attr-defined]  # no types there
            torch.tensor([prompt]), num_beams=3, num_return_sequences=3, do_sample=False, max_new_tokens=7,
            eos_token_id=stops or None, pad_token_id=0, length_penalty=length_penalty, early_stopping=early_stopping,
        )[:, len(prompt):]  # fmt: skip
        expected = [row[: len(reply.tokens)] for row, reply in zip(theirs.tolist(), ours, strict=True)]
        assert [list(reply.tokens) for reply in ours] == expected
        # what follows a reply that is shorter is padding
        rests = [row[len(reply.tokens) :] for row, reply in zip(theirs.tolist(), ours, strict=True)]
        assert {token for rest in rests for token in rest} <= {0, *stops[:1]}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[embedllm.Model, object]]:
    """The same tiny weights here and in transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    checkpoint = tiny_checkpoint(tmp_path_factory.mktemp("peer") / "checkpoint", "llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    package = convert(checkpoint, checkpoint.parent / "package", Recipe(bits=32))
    with embedllm.load(package, device="cpu") as llm:
        yield llm, model
