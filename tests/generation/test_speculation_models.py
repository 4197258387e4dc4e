"""Speculation on tiny real models: whatever is proposed, the reply is the plain one; by a thread and awaited."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest

import embedllm
from embedllm import Model, Sampling
from embedllm.backends.base import FeedsAll
from embedllm.cancel import Cancel
from embedllm.generation.chunk import Chunk
from embedllm.generation.loop import FeedGenerator, run
from embedllm.generation.request import Request
from embedllm.generation.speculation.speculator import Speculator
from embedllm.kv_cache.sequence import CachedSequence
from tests.generation.test_loop import PIECES, Guesses, Said, rule
from tests.support.fakes import FakeLogits

pytestmark = pytest.mark.slow  # the rules are those of test_speculation.py, without a model
PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]
GREEDY = Sampling(temperature=0)


def opened(device: str, folder: Path, draft: Path | Model | None = None) -> Model:
    if device == "openvino":
        pytest.importorskip("openvino")
    return embedllm.load(folder, device=device, exact=device != "reference", draft=draft)


@pytest.fixture(scope="module", params=["cpu", "reference", "openvino"])
def llm(request: pytest.FixtureRequest, tiny_package: Callable[..., Path]) -> Iterator[Model]:
    with opened(request.param, tiny_package("llama")) as model:
        yield model


def tokens(chunks: Sequence[Chunk]) -> list[int]:
    return [chunk.token for chunk in chunks if chunk.token is not None]


def test_any_proposals_give_the_plain_tokens(llm: Model) -> None:
    request = llm.request(PROMPT, GREEDY, max_tokens=24, stop_tokens=(), speculate="off")
    plain = tokens(list(llm.runner.stream(request, Cancel())))
    for seed in range(6):
        random, proposals, at = Random(seed), [], 1
        while at < len(plain):
            right = random.randrange(5)
            proposals.append([*plain[at : at + right], *random.choices(range(20), k=random.randrange(3))])
            at += right + 1
        sequence = llm.runner.call(llm.runner.sequences.new)

        def guided(
            request: Request = request, sequence: CachedSequence = sequence, proposals: list[list[int]] = proposals
        ) -> list[Chunk]:
            with llm.runner._decoding(request, Cancel(), sequence) as running:  # pyright: ignore[reportPrivateUsage]
                used, pieces, generation, _ = running
                assert isinstance(used.session, FeedsAll)
                return list(run(generation, used, pieces, Cancel(), Guesses(proposals)))

        assert tokens(llm.runner.call(guided)) == plain
        assert sequence.tokens == [*PROMPT, *plain[:-1]]
        assert sequence.session.position == len(sequence.tokens)
        llm.runner.call(partial(llm.runner.sequences.drop, sequence))


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=1, temperature=0.3), Sampling(seed=2, top_k=3)])
def test_a_lookup_gives_the_plain_reply_and_so_does_the_awaited_one(llm: Model, sampling: Sampling) -> None:
    async def collected() -> list[Chunk]:
        return [chunk async for chunk in llm.astream(PROMPT, sampling, max_tokens=30, speculate="lookup")]

    plain = llm.generate(PROMPT, sampling, max_tokens=30, speculate="off")
    found = llm.generate(PROMPT, sampling, max_tokens=30, speculate="lookup")
    assert found.tokens == plain.tokens == tuple(tokens(asyncio.run(collected())))
    assert plain.statistics.drafted_tokens == 0


@pytest.mark.parametrize(("device", "together"), [("cpu", 3), ("reference", 1)])  # which steps one by one
def test_a_speculator_knows_how_many_requests_step_together(
    device: str, together: int, tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()

    def propose(self: Speculator, most: int) -> FeedGenerator:
        seen.add(self._together())
        yield from ()
        return ()

    monkeypatch.setattr(Speculator, "propose", propose)
    with embedllm.load(tiny_package("llama"), device=device) as llm:
        llm.generate(PROMPT, GREEDY, max_tokens=5, stop_tokens=(), speculate="lookup")
        assert seen == {1}
        monkeypatch.setattr(llm.runner.scheduler, "active", lambda: 3)
        seen.clear()
        llm.generate(PROMPT, GREEDY, max_tokens=5, stop_tokens=(), speculate="lookup")
    assert seen == {together}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_a_model_that_drafts_for_itself_is_mostly_right(device: str, tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("llama")
    with opened(device, folder, folder) as model:
        plain = model.generate(PROMPT, GREEDY, max_tokens=40, stop_tokens=(), speculate="off")
        found = model.generate(PROMPT, GREEDY, max_tokens=40, stop_tokens=(), speculate="draft")
        again = asyncio.run(model.agenerate(PROMPT, GREEDY, max_tokens=40, stop_tokens=()))
    assert found.tokens == again.tokens == plain.tokens
    assert found.statistics.acceptance > 0.9
    assert found.statistics.drafted_tokens > 15


def test_what_can_be_repeated_is_not_guessed_at_unasked(tiny_package: Callable[..., Path]) -> None:
    with opened("cpu", tiny_package("llama")) as model:
        runner = model.runner

        def speculates(sampling: Sampling, **options: str) -> bool:
            return runner._speculates(model.request(PROMPT, sampling, **options))  # type: ignore[arg-type]  # speculate

        assert speculates(Sampling())
        assert not speculates(Sampling(seed=1))
        assert not speculates(GREEDY)
        assert speculates(GREEDY, speculate="lookup")
        assert not speculates(Sampling(), speculate="off")
    with opened("reference", tiny_package("llama")) as unmeasured:
        assert not unmeasured.runner._speculates(unmeasured.request(PROMPT, Sampling()))


def test_a_draft_of_another_vocabulary_and_unknown_modes_are_refused(tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("llama")
    with pytest.raises(ValueError, match=r"cannot draft for .*: its vocabulary has 299 tokens instead of 307"):
        opened("cpu", folder, tiny_package("llama", vocab_size=299))
    with opened("cpu", folder) as model:
        with pytest.raises(ValueError, match="speculate is 'draft', and this model has none; load it with draft="):
            model.generate(PROMPT, speculate="draft")
        with pytest.raises(ValueError, match="speculate is 'yes'; expected 'auto', 'lookup', 'draft', 'off' or None"):
            model.generate(PROMPT, speculate="yes")  # type: ignore[arg-type]  # that is tested
        assert model.generate(PROMPT, max_tokens=2, speculate=None).statistics.tokens == 2


def test_a_draft_model_that_was_given_is_not_closed(tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("llama")
    with opened("cpu", folder) as draft:
        with opened("cpu", folder, draft):
            pass
        assert draft.generate(PROMPT, max_tokens=2).statistics.tokens == 2


class Weighted(Said):
    """A sequence with a fixed distribution that depends on the last token: three tokens, unequal."""

    def _row(self, held: int) -> FakeLogits:
        last = self.held[held - 1] % 3
        return FakeLogits([math.log(share) for share in SHARES[last]])


SHARES = ((0.6, 0.3, 0.1), (0.1, 0.2, 0.7), (0.4, 0.4, 0.2))
SEEDS = 3000
CRITICAL = 52.6  # chi-square with 26 degrees of freedom is above it once in 660 times; the seeds are fixed


def test_replies_of_many_seeds_are_distributed_as_the_model_says() -> None:
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(SEEDS):
        guesses = Guesses([[1, 0], [2]] if seed % 2 else [[0, 0], [0]])
        generation = rule(sampling=Sampling(seed=seed), limit=3, stop_tokens=())
        counts[tuple(tokens(list(run(generation, Weighted(()), PIECES, Cancel(), guesses))))] += 1
    chi_square = 0.0
    for reply in [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]:
        share = SHARES[0][reply[0]] * SHARES[reply[0]][reply[1]] * SHARES[reply[1]][reply[2]]
        chi_square += (counts[reply] - share * SEEDS) ** 2 / (share * SEEDS)
    assert chi_square < CRITICAL
