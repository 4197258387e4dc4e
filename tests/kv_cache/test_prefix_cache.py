"""What a request need not compute, and what is kept for it: on sessions without a runtime, then on real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm import Model, Sampling, load
from embedllm.backends.base import FeedsAll, MovesState
from embedllm.cancel import Cancel
from embedllm.generation.chunk import Chunk
from embedllm.generation.outbox import AHEAD
from embedllm.generation.request import Request
from embedllm.generation.runner import Runner
from embedllm.kv_cache.block_cache import BLOCK
from embedllm.kv_cache.disk_store import DiskStore
from embedllm.kv_cache.fingerprint import kv_type
from embedllm.kv_cache.prefix_cache import CACHE_DIR_BYTES, MIN_TOKENS, PrefixCache, open_disk_store
from embedllm.kv_cache.sequence_pool import CachedSequence
from embedllm.kv_cache.transfer import export_spans, exported
from tests.support.fakes import END, Bytes, taking_turns, tokens
from tests.support.movable import MovableEngine

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues

GREEDY = Sampling(temperature=0)
WAIT_S = 120  # a test that waits this long has failed


def runner_on(engine: MovableEngine, budget_bytes: int = 1 << 20, folder: Path | None = None) -> Runner:
    on_disk = None if folder is None else DiskStore(folder, budget_bytes=1 << 30)
    return Runner(engine, Bytes(), prefix_cache=PrefixCache(budget_bytes, model={"of": "fakes"}, folder=on_disk))


def request(prompt: Sequence[int], max_tokens: int = 3) -> Request:
    return Request(prompt=prompt, sampling=GREEDY, max_tokens=max_tokens, stop=(), stop_tokens=frozenset({END}),
                   top_count=0)  # fmt: skip


def generate(runner: Runner, prompt: Sequence[int], sequence: CachedSequence | None = None) -> list[Chunk]:
    return list(runner.stream(request(prompt), Cancel(), sequence))


def fresh(prompt: Sequence[int], max_tokens: int = 3) -> list[int | None]:
    return tokens(list(Runner(MovableEngine(), Bytes()).stream(request(prompt, max_tokens), Cancel())))


def cached(chunks: Sequence[Chunk]) -> int:
    return chunks[-1].statistics.cached_tokens


def copied(engine: MovableEngine) -> int:
    return sum(session.copied for session in engine.sessions)


# few tokens in long runs: prompts that begin alike, some of them for long
PROMPT = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 90)), min_size=1, max_size=4).map(
    lambda runs: [token for token, count in runs for _ in range(count)]
)


@given(st.lists(st.tuples(PROMPT, st.integers(0, 3)), max_size=8), st.integers(0, 4000))
def test_what_came_before_never_changes_a_reply(calls: list[tuple[list[int], int]], budget: int) -> None:
    engine = MovableEngine()
    runner = runner_on(engine, budget)
    kept = [runner.call(runner.sequences.new) for _ in range(3)]  # as conversations do
    for prompt, who in calls:
        chunks = generate(runner, prompt, kept[who - 1] if who else None)
        assert tokens(chunks) == fresh(prompt)
        assert runner.sequences.prefix_cache is not None
        assert runner.sequences.prefix_cache.bytes <= budget


def test_a_conversation_that_only_grows_copies_nothing() -> None:
    engine = MovableEngine()
    runner = runner_on(engine)
    kept = runner.call(runner.sequences.new)
    prompt = [1] * 300
    for _ in range(4):
        chunks = generate(runner, prompt, kept)
        prompt = [*prompt, *(token for token in tokens(chunks) if token is not None), 7, 8]
    assert cached(generate(runner, prompt, kept)) == len(prompt) - 3  # the last token of a reply was never fed
    assert copied(engine) == 0


@given(st.lists(PROMPT, min_size=2, max_size=8), st.integers(0, 4000))
def test_while_kv_is_copied_there_is_room_for_it(prompts: list[list[int]], budget: int) -> None:
    """What it takes the place of goes before, so that both are never there at once."""
    engine = MovableEngine()
    runner = runner_on(engine, budget)
    prefix_cache = runner.sequences.prefix_cache
    assert prefix_cache is not None
    generate(runner, prompts[0])
    (session,) = engine.sessions
    export = session.export_state

    def exporting(start: int, stop: int) -> KeyValues:
        assert prefix_cache.bytes + 8 * (stop - start) <= budget
        return export(start, stop)

    session.export_state = exporting  # type: ignore[method-assign]
    for prompt in prompts[1:]:
        generate(runner, prompt)


def test_of_what_is_larger_than_the_budget_the_beginning_is_kept() -> None:
    runner = runner_on(MovableEngine(), 8 * (2 * BLOCK + 10))
    generate(runner, [1] * 1000)
    generate(runner, [2] * (2 * BLOCK + 9), runner.call(runner.sequences.new))
    assert cached(generate(runner, [5])) == 0
    assert cached(generate(runner, [1] * 1000)) == 2 * BLOCK


def test_what_a_request_would_lose_is_there_for_the_next() -> None:
    runner = runner_on(engine := MovableEngine())
    one, two = [1] * 500, [2] * 500
    assert [cached(generate(runner, prompt)) for prompt in (one, two, one, two)] == [0, 0, 499, 499]
    assert len(engine.sessions) == 1


def test_a_running_sequence_gives_what_it_has_to_another() -> None:
    engine = MovableEngine()
    runner = runner_on(engine, 0)
    system = [1] * 700
    first = runner.stream(request([*system, 2], AHEAD + 20), Cancel())
    chunks = [next(first)]
    second = generate(runner, [*system, 3])
    assert cached(second) == len(system)
    assert tokens(second) == fresh([*system, 3])
    assert tokens([*chunks, *first]) == fresh([*system, 2], AHEAD + 20)
    assert copied(engine) == len(system)


def test_a_prompt_is_put_together_from_sequence_memory_and_disk(tmp_path: Path) -> None:
    prompt = [token for token in range(8) for _ in range(BLOCK)]
    writer = runner_on(MovableEngine(), folder=tmp_path)
    generate(writer, prompt)
    writer.close()
    runner = runner_on(engine := MovableEngine(), folder=tmp_path / "other")
    generate(runner, prompt[: 5 * BLOCK])
    generate(runner, [*prompt[: 2 * BLOCK], 9, 9])  # what comes after the second block goes to memory
    prefix_cache = runner.sequences.prefix_cache
    assert prefix_cache is not None
    prefix_cache.folder = DiskStore(tmp_path, budget_bytes=1 << 30)
    engine.sessions[0].fed.clear()
    chunks = generate(runner, prompt)
    assert cached(chunks) == len(prompt) - 1
    assert engine.sessions[0].fed[0] == prompt[-1:]
    assert tokens(chunks) == fresh(prompt)


def test_little_is_computed_rather_than_moved() -> None:
    runner = runner_on(engine := MovableEngine())
    for prompt in ([1] * (MIN_TOKENS - 3), [2] * 5, [1] * (MIN_TOKENS - 3)):
        assert cached(generate(runner, prompt)) == 0
    assert copied(engine) == 0


def test_release_and_close_free_what_is_kept() -> None:
    runner = runner_on(MovableEngine())
    prefix_cache = runner.sequences.prefix_cache
    assert prefix_cache is not None
    for end in (runner.sequences.release, runner.close):
        generate(runner, [1] * 200)
        generate(runner, [2] * 200)
        assert prefix_cache.bytes == 8 * 200 + 8 * 2  # the reply's, too; its last token was never fed
        end()
        assert prefix_cache.bytes == 0


def test_threads_that_share_prompts_get_the_replies_of_calls_one_by_one(tmp_path: Path) -> None:
    runner = runner_on(MovableEngine(), 4000, tmp_path)
    prompts = [[place % 3] * 150 + [place % 5] * 80 + [place] for place in range(60)]
    expected = [fresh(prompt) for prompt in prompts]
    with taking_turns(), ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda prompt: tokens(generate(runner, prompt)), prompts))
    assert replies == expected
    runner.close()


def test_two_that_want_each_other_s_kv_at_once_both_end() -> None:
    engine = MovableEngine()
    runner = runner_on(engine, 0)
    prompts = ([1] * 600, [2] * 600)
    kept = [runner.call(runner.sequences.new) for _ in prompts]
    for sequence, prompt in zip(kept, prompts, strict=True):
        generate(runner, prompt, sequence)
    both = threading.Barrier(2)

    def swap(place: int) -> list[int | None]:
        both.wait(WAIT_S)
        return tokens(generate(runner, [*prompts[1 - place], 5], kept[place]))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(swap, range(2), timeout=WAIT_S)) == [fresh([*prompts[1 - place], 5]) for place in range(2)]


# --- on real sessions

DEVICES = ["cpu", "reference", "openvino"]
PREFIX = [3 + at * 7 % 290 for at in range(400)]


@pytest.fixture(params=DEVICES)
def llm(request: pytest.FixtureRequest, tiny_package: Callable[..., Path]) -> Iterator[Model]:
    if request.param == "openvino":
        pytest.importorskip("openvino")
    folder = tiny_package("llama", max_position_embeddings=1024)
    with load(folder, device=request.param, exact=request.param != "reference") as model:
        yield model


def test_moved_kv_gives_the_logits_of_a_session_that_was_fed_alike(llm: Model) -> None:
    one, two, moved = (llm.runner.engine.open() for _ in range(3))
    for session in (one, two):
        session.feed(PREFIX)
    assert isinstance(one, MovesState)
    assert isinstance(moved, MovesState)
    assert isinstance(two, FeedsAll)
    assert isinstance(moved, FeedsAll)
    moved.import_state(one.export_state(0, 200))
    moved.import_state(one.export_state(200, len(PREFIX)))
    assert np.array_equal(moved.feed_all([5, 6, 7]), two.feed_all([5, 6, 7]))


def test_kv_as_it_is_stored_comes_in_the_parts_that_were_asked_for(llm: Model) -> None:
    session = llm.runner.engine.open()
    session.feed(PREFIX)
    assert isinstance(session, MovesState)
    spans = [(0, 64), (64, 128), (130, 131), (200, 400)]
    for (start, stop), parts in zip(spans, export_spans(session, spans), strict=True):
        whole = exported(session, start, stop)
        for array, expected in zip(sum(parts, ()), sum(whole, ()), strict=True):
            assert array.shape[1] == stop - start
            assert array.base is None  # it keeps nothing else in memory
            assert np.array_equal(array, expected)
    assert kv_type(session) == kv_type(llm.runner.engine.open())  # type: ignore[arg-type]  # as the one above


def test_replies_over_a_shared_prefix_equal_those_without(llm: Model) -> None:
    prompts = [[*PREFIX, 9], [7] * 300, [*PREFIX, 11, 12], [7] * 200 + [8] * 100, [*PREFIX[:250], 4]]
    with load(
        llm.package.folder, device=llm.device.name, exact=llm.device.name != "reference", prefix_cache=0
    ) as plain:
        expected = []
        for prompt in prompts:
            expected.append(plain.generate(prompt, GREEDY, max_tokens=6, stop_tokens=()).tokens)
            plain.release()
    replies = [llm.generate(prompt, GREEDY, max_tokens=6, stop_tokens=()) for prompt in prompts]
    assert [reply.tokens for reply in replies] == expected
    assert [reply.statistics.cached_tokens for reply in replies] == [0, 0, 400, 200, 250]


def test_a_second_request_at_the_same_time_has_the_prefix_of_the_first(llm: Model) -> None:
    alone = llm.generate([*PREFIX, 11], GREEDY, max_tokens=4, stop_tokens=()).tokens
    llm.release()
    first = llm.stream([*PREFIX, 9], GREEDY, max_tokens=4, stop_tokens=())
    next(first)
    second = llm.generate([*PREFIX, 11], GREEDY, max_tokens=4, stop_tokens=())
    assert (second.tokens, second.statistics.cached_tokens) == (alone, len(PREFIX))
    assert len(list(first)) == 3


def test_nothing_is_shared_when_it_is_off(tiny_package: Callable[..., Path]) -> None:
    with load(tiny_package("llama", max_position_embeddings=1024), prefix_cache=0) as model:
        replies = [model.generate(prompt, max_tokens=1) for prompt in (PREFIX, [5] * 300, PREFIX)]
        assert [reply.statistics.cached_tokens for reply in replies] == [0, 0, 0]


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1 GB"])
def test_sizes_that_make_no_sense_are_refused(tiny_package: Callable[..., Path], wrong: object) -> None:
    folder = tiny_package("llama", max_position_embeddings=1024)
    for name in ("prefix_cache", "cache_dir_bytes"):
        with pytest.raises(ValueError, match=f"{name} is {wrong!r}; expected bytes"):
            load(folder, **{name: wrong})  # type: ignore[arg-type]


def test_a_cache_dir_of_a_user_that_is_not_there_is_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_disk_store("~nobody-of-this-name", prefix_cache=None, budget_bytes=CACHE_DIR_BYTES) is not None
    assert (tmp_path / "~nobody-of-this-name").is_dir()
