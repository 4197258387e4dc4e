"""Conversations in files: messages and KV come back, or the messages alone where the KV is of no use."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedllm import Conversation, Model, PackageError, Sampling, load
from embedllm.export import Recipe, convert
from embedllm.kv_cache.kv_file import open_state
from tests.support.tiny_recurrent import tiny_qwen3_5

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


# Recurrent models: KV up to positions whose states are kept, and these states


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recurrent")
    return convert(tiny_qwen3_5(place / "checkpoint"), place / "package", Recipe(bits=32))


def asked_instead(talk: Conversation) -> tuple[tuple[int, ...], int]:
    """Another question in place of the last one; the reply, and how many tokens were cached."""
    talk.messages = talk.messages[:-2]
    reply = talk.say("or what?", GREEDY, max_tokens=6)
    return reply.tokens, reply.statistics.cached_tokens


def test_a_recurrent_model_goes_on_and_goes_back_as_if_it_had_never_stopped(
    recurrent: Path, device: str, tmp_path: Path
) -> None:
    path = tmp_path / "talk"
    with load(recurrent, device=device, prefix_cache=0) as llm, llm.conversation("Be brief. " * 20) as talk:
        talk.say("hello", GREEDY, max_tokens=6)
        talk.say("and now?", GREEDY, max_tokens=6)
        talk.save(path)
        on, back = talk.say("then?", GREEDY, max_tokens=6), asked_instead(talk)
        talk.messages = talk.messages[:-2]
        expected = (on.tokens, on.statistics.cached_tokens), back, asked_instead(talk)
    with load(recurrent, device=device, prefix_cache=0) as llm, llm.open_conversation(path) as talk:
        on = talk.say("then?", GREEDY, max_tokens=6)
        assert ((on.tokens, on.statistics.cached_tokens), asked_instead(talk)) == expected[:2]
        talk.messages = talk.messages[:-2]
        tokens, cached = asked_instead(talk)
        assert tokens == expected[2][0]
        assert 100 < cached <= on.statistics.cached_tokens


@pytest.mark.parametrize("damaged", ["states", "kv"])
def test_of_damaged_states_nothing_is_used(
    recurrent: Path, damaged: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "embedllm")
    path = tmp_path / "talk"
    with load(recurrent, device="cpu", prefix_cache=0) as llm:
        tokens, _ = said(llm, path)
        whole = path.read_bytes()
        at = -1 if damaged == "states" else 8 + int.from_bytes(whole[:8], "little")
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + (whole[at + 1 :] if at >= 0 else b""))
        with llm.open_conversation(path) as talk:
            reply = talk.say("and now?", GREEDY, max_tokens=6)
    assert reply.tokens == tokens
    assert sum("computes the KV again from token" in record.message for record in caplog.records) == 1
    if damaged == "kv":
        assert reply.statistics.cached_tokens == 0


@pytest.mark.parametrize("positions", [[9, 9], [9, 5], [0], [10**6]], ids=str)
def test_states_of_positions_that_the_kv_has_not_are_refused(
    recurrent: Path, positions: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "talk"
    with load(recurrent, device="cpu", prefix_cache=0) as llm:
        said(llm, path)
        header = header_of(path)
        held = sorted({int(name.split(".")[1]) for name in header if name.startswith("states.")})
        assert held
        renamed = dict(zip(held, positions, strict=False))
        changed: dict[str, Any] = {}
        for name, entry in header.items():
            kind, _, rest = name.partition(".")
            position, _, part = rest.partition(".")
            is_renamed = kind == "states" and int(position) in renamed
            changed[f"states.{renamed[int(position)]}.{part}" if is_renamed else name] = entry
        repaired(path, changed)
        with pytest.raises(PackageError, match="holds no KV that fits its tokens"):
            llm.open_conversation(path)


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


# Forged files: a hash can be repaired by anybody


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def repaired(path: Path, header: dict[str, Any] | None = None, about: Mapping[str, str] = {}) -> None:
    """Writes a header, or changed notes in it, with a hash that fits it."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = header_of(path) if header is None else header
    header["__metadata__"] |= about
    header["__metadata__"]["sha256"] = "0" * 64
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    text = text.replace(b'"sha256": "' + b"0" * 64, b'"sha256": "' + sha256(text).hexdigest().encode(), 1)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.fixture(scope="module")
def saved_talk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, bytes]:
    """A model, and a file of a conversation with KV in two pieces."""
    llm = load("demo", device="cpu")
    path = tmp_path_factory.mktemp("saved") / "talk"
    with llm.conversation("Be brief. " * 40) as talk:
        talk.say("hello", GREEDY, max_tokens=6)
        talk.save(path)
    return llm, path.read_bytes()


@pytest.fixture(scope="module")
def saved_talks(
    saved_talk: tuple[Model, bytes], recurrent: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Model, bytes]]:
    """And those of a recurrent model, with states."""
    path = tmp_path_factory.mktemp("saved") / "talk"
    llm = load(recurrent, device="cpu", prefix_cache=0)
    said(llm, path)
    return [saved_talk, (llm, path.read_bytes())]


def test_states_of_another_shape_are_not_used(
    saved_talks: list[tuple[Model, bytes]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "embedllm")
    llm, data = saved_talks[1]
    path = tmp_path / "talk"
    path.write_bytes(data)
    header = header_of(path)
    names = [name for name in header if name.startswith("states.")]
    last = header[names[-1]]
    last["shape"][2], last["data_offsets"][1] = 0, last["data_offsets"][0]
    repaired(path, header, about={"pieces": _hashes(path, header)})
    with llm.open_conversation(path) as talk:
        assert talk.say("and now?", GREEDY, max_tokens=6).tokens == said(llm, tmp_path / "other")[0]
    assert "holds states of another model" in caplog.text


def _hashes(path: Path, header: dict[str, Any]) -> str:
    """Those of the pieces that a header describes."""
    whole = path.read_bytes()
    data = whole[8 + int.from_bytes(whole[:8], "little") :]
    pieces: dict[str, list[list[int]]] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            pieces.setdefault(name.rsplit(".", 2)[0], []).append(entry["data_offsets"])
    return " ".join(sha256(data[each[0][0] : each[-1][1]]).hexdigest() for each in pieces.values())


@pytest.mark.parametrize("kept", [0, 5, 100])
def test_kv_of_other_tokens_than_it_says_is_refused(saved_talk: tuple[Model, bytes], tmp_path: Path, kept: int) -> None:
    llm, data = saved_talk
    path = tmp_path / "talk"
    path.write_bytes(data)
    tokens = json.loads(header_of(path)["__metadata__"]["tokens"])
    repaired(path, about={"tokens": json.dumps(tokens[:kept])})
    with pytest.raises(PackageError, match="holds no KV that fits its tokens"):
        llm.open_conversation(path)
    repaired(path, about={"tokens": json.dumps(tokens)})
    with llm.open_conversation(path) as talk:  # the repair itself is good
        assert talk.say("and now?", GREEDY, max_tokens=2).statistics.cached_tokens > 100


@pytest.mark.parametrize(
    "conversation",
    [
        {"messages": {}},
        {"messages": "hello"},
        {"messages": [1]},
        {"messages": None},
        {"tools": 3},
        {"tools": ["f"]},
        {"variables": [1]},
        {"first_seen": -1},
        {"first_seen": 99},
        {"first_seen": "0"},
        {"dropped_tokens": "many"},
        {"adapter": 7},
        {"when_full": []},
        {"unknown": 1},
    ],
    ids=str,
)
def test_values_of_another_kind_are_refused(
    saved_talk: tuple[Model, bytes], tmp_path: Path, conversation: dict[str, object]
) -> None:
    llm, data = saved_talk
    path = tmp_path / "talk"
    path.write_bytes(data)
    said = json.loads(header_of(path)["__metadata__"]["conversation"])
    repaired(path, about={"conversation": json.dumps(said | conversation)})
    with pytest.raises(PackageError, match="holds no conversation"):
        llm.open_conversation(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_no_forged_header_gives_another_error(
    saved_talks: list[tuple[Model, bytes]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    llm, whole = data.draw(st.sampled_from(saved_talks))
    path = tmp_path_factory.mktemp("forged") / "talk"
    path.write_bytes(whole)
    header = header_of(path)
    notes = header["__metadata__"]
    change = data.draw(st.sampled_from(["note", "remove note", "text", "field", "tensor", "remove tensor", "name"]))
    if "note" in change or change == "text":
        name = data.draw(st.sampled_from(sorted(notes.keys() - {"sha256"})))
        if change == "remove note":
            del notes[name]
        else:
            nested = st.just("[" * 100_000)
            notes[name] = data.draw(nested | (VALUES.map(json.dumps) if change == "note" else st.text(max_size=9)))
    elif change == "field":
        said = json.loads(notes["conversation"])
        said[data.draw(st.sampled_from(sorted(said)))] = data.draw(VALUES)
        notes["conversation"] = json.dumps(said)
    else:
        name = data.draw(st.sampled_from(sorted(header.keys() - {"__metadata__"})))
        entry = header.pop(name)
        if change == "name":
            header[
                data.draw(st.sampled_from(["x", "0.0", "7" * 5000 + ".0.key", "9.0.key", "-1.0.key", "states.9.0.key"]))
            ] = entry
        elif change == "tensor":
            entry[data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))] = data.draw(
                VALUES | st.sampled_from(["F64", [1, 2, 3], [0, 0], [0, 64]])
            )
            header[name] = entry
    repaired(path, header)
    with suppress(PackageError), llm.open_conversation(path):
        pass
