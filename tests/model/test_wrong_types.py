"""Wrong types in calls of a model: a ValueError that says what was found and what is expected, wherever it is given."""

# ruff: noqa: ANN401  # what a caller without a type checker may pass

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embedllm import Model, load, run_tools
from tests.support.encoder_folders import write_embedder, write_reranker

MESSAGE = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def llm(tiny_package: Callable[..., Path]) -> Iterator[Model]:
    with load(tiny_package("llama")) as model:
        yield model


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (None, "messages must be a list of at least one message, found None"),
        (3, "messages must be a list of at least one message, found 3"),
        ("hi", "found a text; give messages, or use generate"),
        (MESSAGE, r"messages must be a list of at least one message, found \{'role'"),
        ([], r"messages must be a list of at least one message, found \[\]"),
        ([MESSAGE, None], r"messages\[1\] is None; expected one like \{'role': 'user', 'content': 'text'\}"),
        ([3], r"messages\[0\] is 3; expected one like"),
        ([{"content": "hi"}], r"messages\[0\]\['role'\] is None"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\['content'\] is 3; expected a text or a list of parts"),
        ([{"role": "user", "content": b"a"}], r"messages\[0\]\['content'\] is b'a'; expected a text or a list"),
        ([{"role": "user", "content": {"type": "text", "text": "hi"}}],
         r"messages\[0\]\['content'\] is \{'type'.*expected a text or a list of parts"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_messages_is_refused_by_every_call(llm: Model, messages: Any, says: str) -> None:
    for call in (llm.chat, llm.prompt, llm.prompt_tokens):
        with pytest.raises(ValueError, match=says):
            call(messages)


def test_a_tools_result_may_be_an_object() -> None:
    from embedllm.text.prompt import plain_content

    result: Any = {"role": "tool", "content": {"temperature": 3}}
    assert plain_content([result], joins_parts=True) == [result]


@pytest.mark.parametrize("messages", [None, 3, "hi", MESSAGE, (MESSAGE,)])
def test_the_history_of_a_conversation_is_a_list(llm: Model, messages: Any) -> None:
    with llm.conversation() as talk:
        with pytest.raises(ValueError, match=r"^messages is .*; expected a list of messages, \[\] for none\.$"):
            talk.messages = messages
        assert talk.messages == []


def test_a_message_in_the_history_that_is_none_is_named(llm: Model) -> None:
    with llm.conversation() as talk:
        talk.messages = [None]  # type: ignore[list-item]  # as a caller without a type checker may
        with pytest.raises(ValueError, match=r"messages\[0\] is None; expected one like"):
            talk.say("hi")


@pytest.mark.parametrize("text", [None, 3, [MESSAGE], b"hi"])
def test_what_is_said_is_a_text_or_a_message(llm: Model, text: Any) -> None:
    with llm.conversation() as talk:
        for say in (talk.say, talk.stream, talk.astream):
            with pytest.raises(ValueError, match=r"^text is .*; expected what the user says, as a text or a message"):
                say(text)


@pytest.mark.parametrize("system", [3, [MESSAGE], MESSAGE, b"hi"])
def test_a_system_prompt_is_a_text(llm: Model, system: Any) -> None:
    with pytest.raises(ValueError, match=r"^system is .*; expected the text of a system prompt, or None\.$"):
        llm.conversation(system)


@pytest.mark.parametrize("prompts", [None, 3, MESSAGE])
def test_a_batch_is_a_list_of_prompts(llm: Model, prompts: Any) -> None:
    with pytest.raises(ValueError, match=r"^generate_batch takes a list of prompts, found a (NoneType|int|dict)"):
        llm.generate_batch(prompts)


@pytest.mark.parametrize("texts", [None, 3, MESSAGE])
def test_texts_are_a_list(llm: Model, texts: Any) -> None:
    with pytest.raises(ValueError, match=r"^texts is a (NoneType|int|dict); expected a list of texts"):
        llm.count_tokens(texts)


@pytest.mark.parametrize("talk", [None, 3, "hi"])
def test_tools_run_for_a_model_or_a_conversation(talk: Any) -> None:
    with pytest.raises(ValueError, match=r"^model is .*; expected a Model or a Conversation"):
        run_tools(talk, "hi")


@pytest.mark.parametrize("device", [3, True, 1.5])
def test_a_device_is_a_name_or_a_list_of_names(tiny_package: Callable[..., Path], device: Any) -> None:
    with pytest.raises(ValueError, match=f"^device is {device}; expected a name such as 'cpu', 'auto', or a list"):
        load(tiny_package("llama"), device=device)


def test_options_of_embedding_models_and_rerankers_are_refused_by_name(tmp_path: Path) -> None:
    from embedllm.export import convert

    embedder = convert(write_embedder(tmp_path / "embedder"), tmp_path / "embedder.package")
    reranker = convert(write_reranker(tmp_path / "reranker"), tmp_path / "reranker.package")
    wrong: Any = ["a"]
    with load(embedder, device="cpu") as model:
        with pytest.raises(ValueError, match="dimensions is 'a'; expected 1 to"):
            model.embed(["hi"], dimensions="a")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"kind is \[\]"):
            model.embed(["hi"], kind=[])  # type: ignore[arg-type]
    with load(reranker, device="cpu") as model:
        with pytest.raises(ValueError, match="top is 'a'; expected 1 or more"):
            model.rerank("hi", ["hi"], top="a")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="query is \\['a'\\]; expected a text"):
            model.rerank(wrong, ["hi"])
        with pytest.raises(ValueError, match="documents is a NoneType; expected a list of texts"):
            model.rerank("hi", None)  # type: ignore[arg-type]
