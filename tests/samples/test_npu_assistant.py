"""The laptop assistant's logic, with a model that says what the test wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm import Cancel, Chunk, ContextFull, Message, Statistics, ToolCall
from embedllm.text.function_schema import JSON
from tests.samples.test_npu_parts import call, desktop

pytest.importorskip("bm25s")
from samples.npu_assistant.assistant import MOST_ROUNDS, Assistant
from samples.npu_assistant.history import History
from samples.npu_assistant.reply import Done, Event, Notice, Text, ToolRun
from samples.npu_assistant.retrieval import Documents, Passage, UnreadableFile


class Words:
    """A tokenizer: each word is a token, and so is each longer stretch of 10 characters."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [0 for word in text.split() for _ in range(0, len(word), 10)]


class Scripted:
    """A model that gives the next reply of a list, texts in pieces of three characters; it keeps the prompts."""

    def __init__(self, *replies: str | Sequence[str | ToolCall], context: int = 4000) -> None:
        self.context = context
        self.tokenizer = Words()
        self.prompts: list[Sequence[Message]] = []
        self._replies = list(replies)

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, JSON]] | None = None,
        variables: Mapping[str, JSON] | None = None,
    ) -> str:
        return "\n".join(f"{message['role']} {message['content']}" for message in messages)

    def stream(
        self,
        prompt: Sequence[Message],
        *,
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, JSON]] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Iterator[Chunk]:
        self.prompts.append(prompt)
        assert len(self.tokenizer.encode(self.prompt(prompt), special=False)) + (max_tokens or 0) <= self.context
        reply = self._replies.pop(0) if self._replies else "ok"
        pieces: list[str | ToolCall] = []
        for part in [reply] if isinstance(reply, str) else reply:
            pieces += [part[at : at + 3] for at in range(0, len(part), 3)] if isinstance(part, str) else [part]
        for count, piece in enumerate(pieces, 1):
            if cancel and cancel.cancelled:
                yield chunk("", "cancelled", count)
                return
            yield chunk(piece, None, count)
        yield chunk("", "stop", len(pieces) + 1)


def chunk(said: str | ToolCall, finish_reason: str | None, count: int) -> Chunk:
    text, calls = (said, ()) if isinstance(said, str) else ("", (said,))
    statistics = Statistics(prompt_tokens=5, cached_tokens=0, tokens=count, decode_s=count / 10)
    return Chunk(text=text, token=1, logprob=0.0, finish_reason=finish_reason, statistics=statistics, tool_calls=calls)


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def notices(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def content(message: Message) -> str:
    return str(message["content"])


def test_a_call_runs_and_the_model_goes_on_with_its_result(tmp_path: Path) -> None:
    asked = call("calculator", expression="6 * 7")
    model = Scripted(["Let me see. ", asked], "It is 42.")
    assistant = Assistant(model, desktop(tmp_path).tools())
    events = list(assistant.answer("What is 6 * 7?"))
    assert ToolRun(asked, True, "42") in events
    assert text_of(events) == "Let me see. It is 42."
    assert model.prompts[1][-1] == {"role": "tool", "tool_call_id": "c1", "name": "calculator", "content": "42"}
    assert "tool_calls" in model.prompts[1][-2]
    assert [message["role"] for message in assistant.history.turns[0]] == ["user", "assistant", "tool", "assistant"]
    done = events[-1]
    assert isinstance(done, Done)
    assert done.statistics.prompt_tokens == 10


def test_a_declined_call_is_told_to_the_model(tmp_path: Path) -> None:
    tools = desktop(tmp_path)
    model = Scripted([call("start_timer", minutes=5)], "Fine.")
    events = list(Assistant(model, tools.tools(), allow=lambda call, tool: False).answer("timer"))
    assert content(model.prompts[1][-1]) == "error: the user declined the call."
    assert text_of(events) == "Fine."
    assert tools.timers == []


def test_rounds_of_calls_are_limited(tmp_path: Path) -> None:
    model = Scripted(*[[call("calculator", expression="1")]] * 20)
    events = list(Assistant(model, desktop(tmp_path).tools()).answer("loop"))
    assert sum(isinstance(event, ToolRun) for event in events) == MOST_ROUNDS
    assert notices(events) == [f"stopped after {MOST_ROUNDS} rounds of tool calls, the model wants another"]
    assert isinstance(events[-1], Done)


def test_passages_go_to_the_model_and_not_into_the_history() -> None:
    model = Scripted("At nine.")
    assistant = Assistant(model, {})
    assistant.documents = Documents([Passage("a.md", 3, "The office opens at nine.\n")])
    events = list(assistant.answer("When does the office open?"))
    assert "[a.md:3]\nThe office opens at nine." in content(model.prompts[0][-1])
    assert assistant.history.turns[0][0] == {"role": "user", "content": "When does the office open?"}
    assert cast("Done", events[-1]).passages == (Passage("a.md", 3, "The office opens at nine.\n"),)


@given(st.lists(st.integers(1, 150), min_size=1, max_size=6), st.integers(80, 600))
def test_passages_never_fill_the_context_and_what_is_left_out_is_told(sizes: list[int], context: int) -> None:
    model = Scripted(context=context)  # it asserts that prompt and reply fit
    assistant = Assistant(model, {})
    passages = [Passage("a", n, f"office{n} office " + "x " * size) for n, size in enumerate(sizes, 1)]
    assistant.documents = Documents(passages)
    events = list(assistant.answer("office"))
    left_out = len(sizes) - len(cast("Done", events[-1]).passages)
    assert bool(left_out) == any("left out" in notice for notice in notices(events))


@given(st.lists(st.integers(1, 120), max_size=12))
def test_the_newest_turns_stay_and_the_user_is_told_of_the_others(sizes: list[int]) -> None:
    model = Scripted(context=300)
    turns: list[list[Message]] = [[{"role": "user", "content": f"q{n} " + "x " * size}] for n, size in enumerate(sizes)]
    events = list(Assistant(model, {}, history=History(None, turns)).answer("now"))
    kept = [content(message).split()[0] for message in model.prompts[0][1:-1]]
    assert kept == [f"q{n}" for n in range(len(sizes))][len(sizes) - len(kept) :]
    assert bool(len(kept) < len(sizes)) == any("oldest turns left out" in notice for notice in notices(events))


def test_a_question_that_is_too_long_is_an_error_and_not_cut() -> None:
    assistant = Assistant(Scripted(context=200), {})
    with pytest.raises(ContextFull, match="Ask for less"):
        list(assistant.answer("x " * 200))
    assert assistant.history.turns == []


def test_a_stopped_reply_runs_no_call_and_keeps_its_text(tmp_path: Path) -> None:
    cancel = Cancel()
    assistant = Assistant(Scripted(["Some text. ", call("calculator", expression="1")]), desktop(tmp_path).tools())
    events: list[Event] = []
    for event in assistant.answer("q", cancel):
        events.append(event)
        cancel.cancel()
    assert not any(isinstance(event, ToolRun) for event in events)
    assert notices(events) == ["stopped"]
    assert assistant.history.turns[0][-1]["content"] == "Som"


def test_a_turn_stopped_before_any_text_is_not_remembered() -> None:
    cancel = Cancel()
    cancel.cancel()
    assistant = Assistant(Scripted("text"), {})
    assert isinstance(list(assistant.answer("q", cancel))[-1], Done)
    assert assistant.history.turns == []


@given(st.integers(1, 3000), st.integers(200, 800))
def test_a_long_document_is_summarised_part_by_part(words: int, context: int) -> None:
    model = Scripted(*["short"] * 1000, context=context)
    assistant = Assistant(model, {})
    file = Written("word " * words)
    events = list(assistant.summarise(cast("Path", file)))
    assert text_of(events) == "short"  # the parts' own summaries are not shown
    assert len(notices(events)) == len(model.prompts) - 1
    read = " ".join(content(prompt[0]) for prompt in model.prompts)
    assert read.count("word") == words  # every word was read once
    assert assistant.history.turns[0][-1]["content"] == "short"


def test_a_long_summary_of_every_part_still_comes_to_an_end() -> None:
    class Wordy(Scripted):
        """Writes as much as it may."""

        def stream(self, prompt: Sequence[Message], *, max_tokens: int | None = None, **_: object) -> Iterator[Chunk]:
            yield chunk("w " * (max_tokens or 0), "length", 1)

    events = list(Assistant(Wordy(context=400), {}).summarise(cast("Path", Written("word " * 5000))))
    assert isinstance(events[-1], Done)


def test_an_empty_document_has_no_summary() -> None:
    with pytest.raises(UnreadableFile, match="no text"):
        list(Assistant(Scripted(), {}).summarise(cast("Path", Written(" \n"))))


def test_a_context_too_small_to_summarise_is_said() -> None:
    with pytest.raises(ContextFull, match="left for the text"):
        list(Assistant(Scripted(context=100), {}).summarise(cast("Path", Written("word"))))


class Written:
    """A text file without a disk."""

    name, suffix = "a.txt", ".txt"

    def __init__(self, text: str) -> None:
        self._text = text
        self.st_size = len(text)

    def is_file(self) -> bool:
        return True

    def stat(self) -> Written:
        return self

    def read_text(self, encoding: str) -> str:
        return self._text
