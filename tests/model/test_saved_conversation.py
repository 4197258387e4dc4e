"""Conversations in files: messages and KV come back, or the messages alone where the KV is of no use."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from embedllm import Model, PackageError, Sampling, load
from embedllm.kv_cache.kv_file import open_state

GREEDY = Sampling(temperature=0)


@pytest.fixture(params=["cpu", "reference", "openvino"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "openvino":
        pytest.importorskip("openvino")
    return request.param


@pytest.fixture
def folder(tiny_package: Callable[..., Path]) -> Path:
    return tiny_package("llama", max_position_embeddings=1024)


def opened(folder: Path, device: str = "cpu") -> Model:
    return load(folder, device=device, exact=device != "reference")


def said(llm: Model, path: Path) -> tuple[tuple[int, ...], int]:
    """Saves a conversation; what it goes on with, and how many tokens it held."""
    with llm.conversation("Be brief. " * 20, variables={"enable_thinking": False}) as talk:
        talk.say("hello", GREEDY, max_tokens=6)
        talk.save(path)
        reply = talk.say("and now?", GREEDY, max_tokens=6)
        return reply.tokens, reply.statistics.cached_tokens


def test_a_conversation_goes_on_in_another_model_as_if_it_had_never_stopped(
    folder: Path, device: str, tmp_path: Path
) -> None:
    path = tmp_path / "talk"
    with opened(folder, device) as llm:
        expected = said(llm, path)
    with opened(folder, device) as llm, llm.open_conversation(path) as talk:
        assert [message["role"] for message in talk.messages] == ["system", "user", "assistant"]
        reply = talk.say("and now?", GREEDY, max_tokens=6)
        assert (reply.tokens, reply.statistics.cached_tokens) == expected
        assert expected[1] > 0


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions here")
def test_only_its_owner_reads_what_was_said(folder: Path, tmp_path: Path) -> None:
    with opened(folder) as llm:
        said(llm, tmp_path / "talk")
    assert (tmp_path / "talk").stat().st_mode & 0o777 == 0o600


def test_on_another_device_the_messages_come_back_and_the_kv_is_computed(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "embedllm")
    path = tmp_path / "talk"
    with opened(folder) as llm:
        said(llm, path)
    with opened(folder, "reference") as llm, llm.open_conversation(path) as talk:
        assert len(talk.messages) == 3
        assert talk.say("and now?", GREEDY, max_tokens=6).statistics.cached_tokens == 0
    assert sum("is of another model, adapter, device or version" in record.message for record in caplog.records) == 1


def test_of_a_damaged_kv_the_messages_come_back(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "embedllm")
    path = tmp_path / "talk"
    with opened(folder) as llm:
        tokens, _ = said(llm, path)
        llm.release()
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with llm.open_conversation(path) as talk:
            reply = talk.say("and now?", GREEDY, max_tokens=6)
            assert (reply.tokens, reply.statistics.cached_tokens) == (tokens, 0)
    assert sum("computes the KV again from token 0" in record.message for record in caplog.records) == 1


def test_what_was_said_can_be_read_without_the_kv(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "talk"
    with opened(folder) as llm:
        said(llm, path)
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    talk = json.loads(header["__metadata__"]["conversation"])
    assert talk["messages"][1] == {"role": "user", "content": "hello"}
    assert talk["variables"] == {"enable_thinking": False}


def weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: Name of the city
    """
    return city


def test_one_that_said_nothing_and_tools_are_saved_too(folder: Path, tmp_path: Path) -> None:
    with opened(folder) as llm:
        llm.conversation("Be brief.", tools=[weather]).save(tmp_path / "talk")
        talk = llm.open_conversation(tmp_path / "talk")
        assert talk.messages == [{"role": "system", "content": "Be brief."}]
        talk.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "talk").read_bytes()
        assert b"Name of the city" in (tmp_path / "again").read_bytes()


def test_a_history_that_was_cleared_is_not_in_the_file(folder: Path, tmp_path: Path) -> None:
    with opened(folder) as llm, llm.conversation() as talk:
        talk.say("my password is hunter2", GREEDY, max_tokens=3)
        talk.save(tmp_path / "before")
        assert json.loads(open_state(tmp_path / "before").about["tokens"])
        talk.messages.clear()
        talk.save(tmp_path / "after")
        assert json.loads(open_state(tmp_path / "after").about["tokens"]) == []


def test_saving_waits_for_no_reply_and_leaves_the_file_when_it_fails(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "talk"
    with opened(folder) as llm, llm.conversation() as talk:
        talk.say("hello", GREEDY, max_tokens=3)
        talk.save(path)
        before = path.read_bytes()
        stream = talk.stream("and now?", GREEDY, max_tokens=6)
        next(stream)
        with pytest.raises(ValueError, match="reply under way"):
            talk.save(path)
        stream.close()
        talk.messages.append({"role": "user", "content": {1, 2}})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match=r"cannot be saved: .*set"):
            talk.save(path)
        assert path.read_bytes() == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["talk"]


def test_what_is_no_saved_conversation_is_an_error(folder: Path, tmp_path: Path) -> None:
    with opened(folder) as llm:
        with pytest.raises(FileNotFoundError):
            llm.open_conversation(tmp_path / "none")
        with pytest.raises(PackageError, match="has the format 'embedllm'"):
            llm.open_conversation(folder / "weights.safetensors")
        path = tmp_path / "talk"
        llm.conversation("Be brief.").save(path)
        path.write_bytes(path.read_bytes().replace(b"brief", b"BRIEF"))
        with pytest.raises(PackageError, match="header differs from its sha256"):
            llm.open_conversation(path)
