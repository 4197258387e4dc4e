"""Chats that do not fit into the context any more: whole turns are left out, or KV is shifted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import pytest

from embedllm import Cancel, Completion, ContextFull, Conversation, Model, Sampling, load
from embedllm.generation.options import ReplyOptions
from embedllm.generation.request import Request
from embedllm.model.context_policy import WHOLE_HISTORY, PendingTurn, VisibleHistory, drop_oldest
from embedllm.model.conversation import ChatModel

GREEDY = Sampling(temperature=0)
SYSTEM = "You are brief. " * 5


@pytest.fixture(scope="module")
def llm(tiny_package: Callable[..., Path]) -> Iterator[Model]:
    with load(tiny_package("llama", max_position_embeddings=512), exact=True) as model:
        yield model


@pytest.fixture(scope="module")
def plain(tiny_package: Callable[..., Path]) -> Iterator[Model]:
    """One layer, whose KV comes of its own token alone: a shift is exact."""
    with load(tiny_package("llama", num_hidden_layers=1, max_position_embeddings=512), exact=True) as model:
        yield model


def digits(model: ChatModel) -> Sampling:
    """Holds replies to digits: what a random model says otherwise is no text, which comes back as other tokens."""
    tokens = [model.tokenizer.encode(digit, special=False)[0] for digit in "0123456789"]
    return Sampling(temperature=0, logit_bias=dict.fromkeys(tokens, 100.0))


def talk_for(talk: Conversation, turns: int, **options: Unpack[ReplyOptions]) -> list[Completion]:
    sampling = digits(talk.model)
    text = "list all files and sort them by size"
    return [talk.say(f"turn {turn}: {text}", sampling, **options) for turn in range(turns)]


# --- whole turns, as a rule


def message(role: str, words: int) -> dict[str, Any]:
    return {"role": role, "content": "w " * words}


def asked(messages: Sequence[Any], context: int, max_tokens: int | None = None) -> PendingTurn:
    """A history in which each word is a token."""

    def tokens(shown: Sequence[Any]) -> list[int]:
        return [0] * sum(len(str(one.get("content") or "").split()) for one in shown)

    def request(shown: Sequence[Any]) -> Request:
        return Request(prompt=tokens(shown), sampling=GREEDY, max_tokens=max_tokens, stop=(),
                       stop_tokens=frozenset(), top_count=0)  # fmt: skip

    return PendingTurn(messages=messages, request=request, tokens=tokens, context=context)


def test_what_fits_is_left_alone() -> None:
    history = [message("system", 10), message("user", 30), message("assistant", 30), message("user", 5)]
    request, seen = drop_oldest(asked(history, 100), WHOLE_HISTORY)
    assert (len(request.prompt), seen, request.dropped_tokens) == (75, WHOLE_HISTORY, 0)


def test_the_oldest_turns_go_until_a_quarter_is_free_beside_the_reply() -> None:
    turns = [part for _ in range(7) for part in (message("user", 5), message("assistant", 5))]
    history = [message("system", 10), *turns, message("user", 5)]
    request, seen = drop_oldest(asked(history, 100), WHOLE_HISTORY)  # 85 tokens, and 25 for a reply
    assert len(request.prompt) == 45
    assert seen.first is history[9]
    assert request.dropped_tokens == seen.dropped_tokens == 40
    longer = [*history, message("assistant", 10), message("user", 10)]
    request, again = drop_oldest(asked(longer, 100), seen)
    assert (len(request.prompt), again) == (65, seen)  # nothing more goes until it is full again
    request, again = drop_oldest(asked([*longer, message("assistant", 5), message("user", 10)], 100), seen)
    assert (again.first, again.dropped_tokens) == (history[15], 70)  # both times together


def test_the_room_for_a_reply_is_what_it_may_have_but_half_of_the_context_at_most() -> None:
    history = [message("user", 20), message("assistant", 20), message("user", 5)]
    assert len(drop_oldest(asked(history, 100, 50), WHOLE_HISTORY)[0].prompt) == 45
    assert len(drop_oldest(asked(history, 100, 99), WHOLE_HISTORY)[0].prompt) == 45
    longer = [message("user", 26), message("assistant", 20), message("user", 5)]
    assert len(drop_oldest(asked(longer, 100, 49), WHOLE_HISTORY)[0].prompt) == 51
    assert len(drop_oldest(asked(longer, 100, 50), WHOLE_HISTORY)[0].prompt) == 5


def test_calls_and_their_results_go_with_the_turn_that_asked_for_them() -> None:
    calls = [message("user", 20), {"role": "assistant", "content": None, "tool_calls": [{}]}, message("tool", 40),
             message("assistant", 5)]  # fmt: skip
    history = [*calls, message("user", 10), message("assistant", 5), message("tool", 5)]
    request, seen = drop_oldest(asked(history, 100), WHOLE_HISTORY)
    assert seen.first is history[4]
    assert len(request.prompt) == 20


def test_the_last_turn_is_never_dropped_and_a_first_reply_without_a_question_is_a_turn() -> None:
    history = [message("system", 10), message("assistant", 60), message("user", 95), message("tool", 20)]
    request, seen = drop_oldest(asked(history, 100), WHOLE_HISTORY)
    assert seen.first is history[2]
    assert len(request.prompt) == 125  # for the check to refuse


def test_a_history_that_lost_its_first_seen_message_is_seen_from_its_beginning() -> None:
    gone = VisibleHistory(first=message("user", 1), dropped_tokens=9)
    history = [message("user", 5), message("assistant", 5), message("user", 5)]
    request, seen = drop_oldest(asked(history, 100), gone)
    assert (len(request.prompt), seen, request.dropped_tokens) == (15, WHOLE_HISTORY, 0)


# --- drop-oldest, on a model


def test_a_chat_without_end_drops_its_oldest_turns_and_says_so(llm: Model) -> None:
    with llm.conversation(SYSTEM, when_full="drop-oldest") as talk:
        replies = talk_for(talk, 12, max_tokens=40)
        assert len(talk.messages) == 25  # nothing of the history is lost
        dropped = [reply.statistics.dropped_tokens for reply in replies]
        assert dropped[0] == 0
        assert dropped == sorted(dropped)
        assert len(set(dropped)) >= 3  # more than once, and not in each turn
        assert len(set(dropped)) < 8
        assert all(reply.statistics.prompt_tokens + 40 <= llm.context for reply in replies)


def test_a_turn_that_is_cancelled_before_it_begins_says_what_it_would_not_have_seen(llm: Model) -> None:
    cancel = Cancel()
    cancel.cancel()
    with llm.conversation(SYSTEM, when_full="drop-oldest") as talk:
        before = talk_for(talk, 8, max_tokens=40)[-1].statistics.dropped_tokens
        reply = talk.say("and now?", cancel=cancel, max_tokens=5)
        assert (reply.finish_reason, len(talk.messages)) == ("cancelled", 17)
        assert reply.statistics.dropped_tokens >= before > 0


def test_what_is_seen_is_what_a_fresh_call_with_these_messages_computes(llm: Model) -> None:
    with llm.conversation(SYSTEM, when_full="drop-oldest") as talk:
        replies = talk_for(talk, 6, max_tokens=40)
        at = next(place for place, reply in enumerate(replies) if reply.statistics.dropped_tokens)
        first = next(place for place, one in enumerate(talk.messages) if one is talk._visible_history.first)
        shown = [talk.messages[0], *talk.messages[first : 2 * at + 2]]
        expected = llm.chat(shown, digits(llm), max_tokens=40)
        assert expected.tokens == replies[at].tokens
        system = llm.tokenizer.encode(llm.prompt(talk.messages[:1]), special=False)
        assert replies[at].statistics.cached_tokens >= len(system) - 5  # the system message's KV is used again
        assert replies[at + 1].statistics.cached_tokens > len(system) + 20


def test_a_turn_that_is_too_long_alone_is_an_error_and_changes_nothing(llm: Model) -> None:
    for policy in ("drop-oldest", "shift"):
        with llm.conversation(SYSTEM, when_full=policy) as talk:
            talk_for(talk, 3, max_tokens=10)
            before, seen = list(talk.messages), talk._visible_history
            with pytest.raises(ContextFull, match="512 can be held"):
                talk.say("so long " * 300)
            assert (talk.messages, talk._visible_history) == (before, seen)
            assert talk.say("and now?", GREEDY, max_tokens=5).tokens


def test_without_a_policy_a_full_chat_is_an_error(llm: Model) -> None:
    with llm.conversation(SYSTEM) as talk, pytest.raises(ContextFull):
        talk_for(talk, 12, max_tokens=40)
    with pytest.raises(ValueError, match="when_full is 'forget'; expected 'error', 'drop-oldest', 'shift'"):
        llm.conversation(when_full="forget")  # type: ignore[arg-type]  # the slip


def test_what_was_dropped_stays_so_in_a_saved_conversation(llm: Model, tmp_path: Path) -> None:
    with llm.conversation(SYSTEM, when_full="drop-oldest") as talk:
        talk_for(talk, 8, max_tokens=40)
        talk.save(tmp_path / "talk")
        expected = talk.say("and now?", GREEDY, max_tokens=5)
    assert expected.statistics.dropped_tokens > 0
    with llm.open_conversation(tmp_path / "talk") as talk:
        assert talk.when_full == "drop-oldest"
        reply = talk.say("and now?", GREEDY, max_tokens=5)
        assert reply.tokens == expected.tokens
        assert reply.statistics.dropped_tokens == expected.statistics.dropped_tokens
        assert reply.statistics.cached_tokens >= expected.statistics.cached_tokens  # of the first one's close, too
    with llm.open_conversation(tmp_path / "talk", when_full="error") as talk, pytest.raises(ContextFull):
        talk.say("and now?", GREEDY, max_tokens=5)


# --- shift, on a model


def test_a_reply_goes_on_beyond_the_end_of_the_context(plain: Model) -> None:
    with plain.conversation(SYSTEM, when_full="shift") as talk:
        reply = talk.say("hello", GREEDY, max_tokens=700, stop_tokens=())
        assert (reply.finish_reason, len(reply.tokens)) == ("length", 700)
        dropped = reply.statistics.dropped_tokens
        assert dropped > 0
        prompt = plain.tokenizer.encode(plain.prompt(talk.messages[:2]), special=False)
        written = [*prompt, *reply.tokens]
        assert talk._sequence is not None
        held = talk._sequence.tokens
        keep = len(held) - (len(written) - 1 - len(prompt)) - len(prompt) + dropped
        assert keep == 0  # all but what was dropped is held
        start = next(at for at in range(len(prompt)) if prompt[at] != held[at])
        assert held == [*written[:start], *written[start + dropped : -1]]
        # with one layer it is what a fresh call says: of the tokens of the last window, whatever stood before them
        begin = len(written) - 3
        left = [*written[:start], *written[start + dropped : begin]]
        fresh = plain.generate(left, GREEDY, max_tokens=3, stop_tokens=())
        assert fresh.tokens == reply.tokens[-3:]


def test_later_turns_go_on_from_the_shifted_kv(plain: Model) -> None:
    with plain.conversation(SYSTEM, when_full="shift") as talk:
        replies = talk_for(talk, 12, max_tokens=60, stop_tokens=())
        dropped = [reply.statistics.dropped_tokens for reply in replies]
        assert dropped == sorted(dropped)
        assert len(set(dropped)) > 2
        for reply in replies[1:]:  # the turn before, and what came before it, is not computed again
            new = reply.statistics.prompt_tokens - reply.statistics.cached_tokens
            assert new < 60, reply.statistics
        assert len(talk.messages) == 25


def test_a_changed_history_is_computed_again_and_seen_as_far_as_it_fits(plain: Model) -> None:
    with plain.conversation(SYSTEM, when_full="shift") as talk:
        talk_for(talk, 10, max_tokens=60, stop_tokens=())
        del talk.messages[1:-4]
        expected = plain.chat([*talk.messages, {"role": "user", "content": "so?"}], GREEDY, max_tokens=5)
        reply = talk.say("so?", GREEDY, max_tokens=5)
        assert reply.statistics.dropped_tokens == 0
        assert reply.tokens == expected.tokens


def test_a_long_history_without_kv_is_cut_before_it_is_computed(plain: Model, tmp_path: Path) -> None:
    with plain.conversation(SYSTEM, when_full="shift") as talk:
        talk_for(talk, 12, max_tokens=60, stop_tokens=())
        talk.save(tmp_path / "talk")
    with plain.open_conversation(tmp_path / "talk") as talk:
        reply = talk.say("so?", GREEDY, max_tokens=5)
        statistics = reply.statistics
        assert plain.context * 0.7 < statistics.prompt_tokens < plain.context
        whole = plain.tokenizer.encode(plain.prompt(talk.messages[:-1]), special=False)
        assert statistics.prompt_tokens + statistics.dropped_tokens == len(whole)


def test_a_system_message_that_leaves_no_room_is_an_error(plain: Model) -> None:
    with (
        plain.conversation("Many rules. " * 90, when_full="shift") as talk,
        pytest.raises(ContextFull, match="'shift' keeps them"),
    ):
        talk.say("hello", GREEDY)


def test_asynchronous_turns_shift_as_well(plain: Model) -> None:
    async def main(talk: Conversation) -> tuple[int, ...]:
        return (await talk.asay("hello", GREEDY, max_tokens=600, stop_tokens=())).tokens

    with plain.conversation(SYSTEM, when_full="shift") as one, plain.conversation(SYSTEM, when_full="shift") as two:
        assert asyncio.run(main(one)) == two.say("hello", GREEDY, max_tokens=600, stop_tokens=()).tokens


@pytest.mark.usefixtures("free")
def test_shifts_and_speculation_go_together(plain: Model) -> None:
    replies = []
    for speculate in ("off", "lookup"):
        with plain.conversation(SYSTEM, when_full="shift") as talk:
            replies.append(talk.say("hello", GREEDY, max_tokens=600, stop_tokens=(), speculate=speculate))
    assert replies[1].statistics.drafted_tokens > 0
    assert replies[0].tokens == replies[1].tokens
    assert all(reply.statistics.dropped_tokens > 0 for reply in replies)
