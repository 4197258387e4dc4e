"""`embedllm worker` as a host sees it: a real process with the demo model on the CPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import embedllm
from embedllm import Sampling
from embedllm.export import Recipe, convert
from embedllm.integrations.worker.methods import METHODS
from embedllm.integrations.worker.protocol import MESSAGE_LIMIT
from tests.support.peft_folders import write_adapter
from tests.support.tiny import tiny_checkpoint
from tests.support.worker_host import COMMAND, ROOT, Host, patched

LONG = "1 2 3 4 5 6 7 8 9 10 11 12"  # the demo goes on with this for ever
MANY = 1900  # tokens, seconds of work: room enough for what happens meanwhile
ASKED = [{"role": "user", "content": "list files by size"}]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A worker with the demo."""
    with Host() as host:
        host.ask("load", "the model", model="demo", device="cpu")
        yield host


@pytest.fixture(scope="module")
def llm() -> Iterator[embedllm.Model]:
    with embedllm.load("demo", device="cpu") as llm:
        yield llm


# --- what the methods give


def test_initialize_says_what_is_spoken_and_the_versions(host: Host) -> None:
    result = host.ask("initialize", "i", protocol=1)
    assert result["protocol"] == 1
    assert result["methods"] == list(METHODS)
    assert result["versions"]["embedllm"] == embedllm.__version__


def test_another_protocol_is_refused(host: Host) -> None:
    host.send("initialize", "other", protocol=2)
    assert host.answer("other")["error"]["code"] == -32602


def test_load_tells_its_progress_and_names_the_device(host: Host) -> None:
    result = host.ask("load", "again", model="demo", device=["no-such-device", "cpu"], threads=1)
    assert (result["model"], result["device"]["name"], result["context"]) == ("demo", "cpu", 2048)
    assert result["can_chat"] is True
    assert host.told("progress", "again")[0]["text"] == "loading 'demo'"
    assert any("no-such-device" in params["text"] for params in host.told("log"))  # why it is not the first wish


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_a_chat_is_the_librarys_and_its_chunks_join_to_it(host: Host, llm: embedllm.Model, temperature: float) -> None:
    options = {"temperature": temperature, "seed": 7, "max_tokens": 40}
    id = f"chat at {temperature}"
    result = host.ask("chat", id, messages=ASKED, system="Be short.", **options)
    messages = [{"role": "system", "content": "Be short."}, *ASKED]
    expected = llm.chat(messages, Sampling(temperature=temperature, seed=7), max_tokens=40)
    assert result["text"] == expected.text
    assert result["text"] == "".join(chunk["text"] for chunk in host.told("chunk", id))
    assert result["finish_reason"] == expected.finish_reason
    assert result["tokens"] == len(expected.tokens)
    assert result["prompt_tokens"] == expected.statistics.prompt_tokens
    assert result["device"] == "cpu"


def test_generate_continues_a_text_up_to_a_stop_string(host: Host, llm: embedllm.Model) -> None:
    whole = llm.generate(LONG, Sampling(temperature=0), max_tokens=12).text
    stop = whole.split()[2]
    result = host.ask("generate", "stopped", prompt=LONG, temperature=0, max_tokens=12, stop=stop)
    assert result["text"] == whole[: whole.index(stop)]
    assert (result["finish_reason"], result["stopped_by"]) == ("stop", stop)


TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
    "additionalProperties": False}}}  # fmt: skip


def test_a_reply_is_what_the_format_says(host: Host) -> None:
    schema = {"type": "object", "properties": {"safe": {"type": "boolean"}}, "required": ["safe"],
              "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    result = host.ask("chat", "json", messages=ASKED, response_format=wanted, temperature=1, seed=3, min_tokens=2)
    assert set(json.loads(result["text"])) == {"safe"}
    assert host.ask("generate", "choice", prompt=LONG, response_format=["yes", "no"])["text"] in ("yes", "no")
    refused = error(host, "generate", prompt=LONG, response_format={"type": "jsonn"})
    assert (refused["code"], "'jsonn'" in refused["message"]) == (-32602, True)


def test_calls_of_tools_are_told_apart_from_the_text(host: Host, llm: embedllm.Model) -> None:
    result = host.ask("chat", "call", messages=ASKED, tools=[TOOL], tool_choice="weather", temperature=0)
    (call,) = result["tool_calls"]
    assert (call["name"], list(call["arguments"]), call["problem"]) == ("weather", ["city"], "")
    assert [call] == [one for chunk in host.told("chunk", "call") for one in chunk.get("tool_calls", [])]
    assert result["text"] == ""
    told = {"role": "tool", "tool_call_id": call["id"], "name": "weather", "content": "sunny"}
    goes_on = [*ASKED, result["message"], told]
    answer = host.ask("chat", "told", messages=goes_on, tools=[TOOL], temperature=0, max_tokens=5)
    expected = llm.chat(goes_on, Sampling(temperature=0), tools=[TOOL], max_tokens=5)
    assert (answer["text"], answer["prompt_tokens"]) == (expected.text, expected.statistics.prompt_tokens)


def test_samplers_and_speculation_are_the_librarys(host: Host, llm: embedllm.Model) -> None:
    given = {"temperature": 1.0, "seed": 5, "top_n_sigma": 1.5, "no_repeat_ngram": 3, "bad_words": [" the"]}
    result = host.ask("generate", "sampled", prompt=LONG, max_tokens=30, **given)
    expected = llm.generate(LONG, Sampling(**given), max_tokens=30)  # type: ignore[arg-type]  # the fields' own types
    assert result["text"] == expected.text
    assert "this model has none" in error(host, "generate", prompt=LONG, speculate="draft")["message"]


def test_a_reply_names_an_adapter_and_one_that_cannot_be_read_costs_no_model(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    model, adapter = convert(checkpoint, tmp_path / "package", Recipe()), write_adapter(tmp_path / "mine", checkpoint)
    with Host() as host:
        loaded = {"model": str(model), "device": "cpu"}
        host.ask("load", "l", **loaded, adapters={"mine": str(adapter)})
        asked = {"prompt": "hello", "max_tokens": 12}
        texts = [host.ask("generate", f"g{name}", **asked, adapter=name)["text"] for name in (None, "mine")]
        with embedllm.load(model, device="cpu", adapters={"mine": adapter}) as llm:
            assert texts == [llm.generate("hello", max_tokens=12, adapter=name).text for name in (None, "mine")]
        assert "there is no adapter 'other'" in error(host, "generate", **asked, adapter="other")["message"]
        assert error(host, "load", **loaded, adapters={"mine": str(tmp_path)})["code"] == -32001
        assert host.ask("generate", "still there", **asked, adapter="mine")["text"] == texts[1]


def test_null_is_as_good_as_nothing(host: Host) -> None:
    result = host.ask("generate", "null", prompt=LONG, max_tokens=2, stop=None, seed=None, temperature=0)
    assert (result["finish_reason"], result["tokens"]) == ("length", 2)


def test_devices_are_those_of_the_library(host: Host) -> None:
    found = {device["name"]: device for device in host.ask("devices", "d")["devices"]}
    assert found["cpu"]["available"] is True
    assert "reference" in found


# --- errors


def error(host: Host, method: str, /, **params: object) -> dict[str, Any]:
    id = f"wrong {method} {sorted(params)}"
    host.send(method, id, **params)
    return host.answer(id)["error"]


def test_errors_have_codes_and_the_librarys_words() -> None:
    with Host() as host:
        assert error(host, "generate", prompt="a")["code"] == -32010
        missing = error(host, "load", model="no/such/folder")
        assert (missing["code"], missing["data"]["kind"]) == (-32001, "PackageError")
        assert "no/such/folder" in missing["message"]
        unknown = error(host, "load", device="quantum")
        assert (unknown["code"], unknown["data"]["kind"]) == (-32002, "DeviceUnavailable")
        assert [tried["device"] for tried in unknown["data"]["tried"]] == ["quantum"]
        assert error(host, "load", threads=-1)["code"] == -32602
        assert error(host, "load", device=[])["code"] == -32602


def test_a_prompt_without_room_says_both_numbers(host: Host, llm: embedllm.Model) -> None:
    found = error(host, "generate", prompt="word " * 5000)
    assert (found["code"], found["data"]["limit"]) == (-32004, llm.context)
    assert found["data"]["tokens"] == len(llm.tokenizer.encode("word " * 5000, special=True))


@pytest.mark.parametrize(
    ("method", "params", "words"),
    [
        ("generate", {}, "'prompt' is missing"),
        ("generate", {"prompt": 3}, "expected the type string"),
        ("generate", {"prompt": "a", "temprature": 1}, "no parameter 'temprature'"),
        ("generate", {"prompt": "a", "temperature": -1}, "temperature"),
        ("generate", {"prompt": "a", "max_tokens": True}, "expected the type integer"),
        ("generate", {"prompt": "a", "max_tokens": 0}, "1 or more"),
        ("generate", {"prompt": ""}, "empty"),
        ("chat", {"messages": "hello"}, "expected the type array"),
        ("chat", {"messages": []}, "at least 1 of them"),
        ("chat", {"messages": [{"content": "no role"}]}, "'messages.0.role' is missing"),
        ("chat", {"messages": [{"role": "user"}]}, "messages[0] has no 'content'"),
        ("chat", {"messages": [*ASKED, {"role": "assistant", "content": 5}]}, "'messages.1.content' is 5"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "takes no images"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "'audio'"),
        ("chat", {"messages": [{"role": "user", "tool_calls": [{}]}]}, "'messages.0.tool_calls.0.function' is missing"),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0] has no 'content'"),
        ("load", {"device": [1]}, "'device.0' is 1"),
        ("cancel", {}, "'id' is missing"),
        ("cancel", {"id": 1.5}, "expected the type string or integer"),
    ],
)
def test_wrong_parameters_are_named(host: Host, method: str, params: dict[str, object], words: str) -> None:
    found = error(host, method, **params)
    assert found["code"] == -32602
    assert words in found["message"]


def test_a_content_may_be_text_parts_as_the_server_has_them(host: Host, llm: embedllm.Model) -> None:
    texts = [{"type": "text", "text": text} for text in ("list files", " by size")]
    parts = [{"role": "user", "content": texts}]
    result = host.ask("chat", "parts", messages=parts, temperature=0, max_tokens=8, stop_tokens=[], timeout=60)
    assert result["text"] == llm.chat(ASKED, Sampling(temperature=0), max_tokens=8).text


@pytest.mark.parametrize("params", [{"threads": -3}, {"threads": 1025}, {"device": []}, {"device": ["cpu", " "]}])
def test_wrong_parameters_of_load_leave_the_held_model(host: Host, params: dict[str, object]) -> None:
    assert error(host, "load", **params)["code"] == -32602
    assert host.ask("generate", "still there", prompt=LONG, max_tokens=1)["tokens"] == 1


@pytest.mark.parametrize("model", ["no/such/folder", "", "a\0b", "tests"])
def test_a_folder_that_is_no_model_leaves_the_held_one(host: Host, model: str) -> None:
    assert error(host, "load", model=model)["code"] == -32001
    assert host.ask("generate", "still there", prompt=LONG, max_tokens=1)["tokens"] == 1


def test_a_call_of_a_tool_needs_no_content(host: Host) -> None:
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "ls", "arguments": {}}}]}
    messages = [*ASKED, called, {"role": "tool", "content": "a.txt"}]
    assert host.ask("chat", "called", messages=messages, max_tokens=1)["tokens"] == 1


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (b"no json", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"1" * 5000, -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"a":NaN}}', -32700, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"generate","params":{"prompt":"\\ud800"}}', -32700, 1),
        (b"[]", -32600, None),
        (b"null", -32600, None),
        (b'{"id":1,"method":"initialize"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":2}', -32600, 2),
        (b'{"jsonrpc":"2.0","id":null,"method":"initialize"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"initialize"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":3,"method":"initialize","params":[]}', -32602, 3),
        (b'{"jsonrpc":"2.0","id":"4","method":"explode"}', -32601, "4"),
        (b"{" + b" " * MESSAGE_LIMIT + b"}", -32012, None),
        (b'{"jsonrpc":"2.0","id":6,' + b" " * MESSAGE_LIMIT + b"}", -32012, 6),
    ],
)
def test_a_wrong_line_is_answered_and_the_next_one_is_read(
    host: Host, line: bytes, code: int, id: int | str | None
) -> None:
    host.send_bytes(line + b"\n")
    assert host.answer(id)["error"]["code"] == code
    assert host.ask("initialize", "after")["protocol"] == 1


def test_line_ends_and_marks_of_other_systems_are_read(host: Host) -> None:
    host.send_bytes(b'\r\n\xef\xbb\xbf{"jsonrpc":"2.0","id":5,"method":"initialize"}\r\n')
    assert host.answer(5)["result"]["protocol"] == 1


def test_notifications_are_never_answered(host: Host) -> None:
    for method in ("initialize", "generate", "explode", "cancel"):
        host.send(method)
    host.ask("initialize", "last")
    assert not [message for message in host.seen if message.get("id", "") is None]


# --- several at once


def test_other_requests_are_answered_while_a_reply_runs_and_cancel_ends_it(host: Host) -> None:
    host.send("generate", "long", prompt=LONG, temperature=0, max_tokens=MANY)
    first = host.first_chunk("long")
    assert host.ask("initialize", "meanwhile")["protocol"] == 1
    host.send_bytes(cancel("long"))
    result = host.answer("long")["result"]
    assert result["finish_reason"] == "cancelled"
    assert result["text"].startswith(first)
    assert result["text"] == "".join(chunk["text"] for chunk in host.told("chunk", "long"))
    assert 0 < result["tokens"] < MANY


def cancel(id: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "cancel", "params": {"id": id}}).encode() + b"\n"


def test_requests_wait_for_their_turn_and_a_cancelled_one_does_not_wait(host: Host) -> None:
    host.send("generate", "runs", prompt=LONG, temperature=0, max_tokens=MANY)
    host.first_chunk("runs")
    host.send("generate", "waits", prompt=LONG, temperature=0, max_tokens=2)
    host.send("generate", "dropped", prompt=LONG)
    host.send("load", "dropped load", model="demo")
    host.send_bytes(cancel("dropped") + cancel("dropped load") + cancel("never heard of"))
    assert host.answer("dropped")["result"]["finish_reason"] == "cancelled"
    assert host.answer("dropped load")["error"]["code"] == -32800
    host.send_bytes(cancel("runs"))
    assert host.answer("runs")["result"]["finish_reason"] == "cancelled"
    assert host.answer("waits")["result"]["finish_reason"] == "length"


def test_an_id_is_used_once_at_a_time(host: Host) -> None:
    host.send("generate", "twin", prompt=LONG, temperature=0, max_tokens=MANY)
    host.first_chunk("twin")
    host.send("generate", "twin", prompt=LONG)
    assert host.answer("twin")["error"]["code"] == -32600
    host.send_bytes(cancel("twin"))
    assert host.answer("twin")["result"]["finish_reason"] == "cancelled"
    for _ in range(20):  # and again as soon as it is answered
        assert host.ask("generate", "twin", prompt=LONG, max_tokens=1)["tokens"] == 1


def test_too_many_waiting_requests_are_refused(host: Host) -> None:
    most = host.ask("initialize", "limits")["limits"]["queued_requests"]
    host.send("generate", "first", prompt=LONG, temperature=0, max_tokens=MANY)
    host.first_chunk("first")
    names = [f"waiting {number}" for number in range(most + 1)]
    for name in names:
        host.send("generate", name, prompt=LONG, max_tokens=1)
    assert host.answer(names[-1])["error"]["code"] == -32011
    host.send_bytes(b"".join(map(cancel, ["first", *names])))
    for name in ["first", *names[:-1]]:
        assert host.answer(name)["result"]["finish_reason"] == "cancelled"


def test_unload_frees_the_model(host: Host) -> None:
    host.ask("unload", "u")
    assert error(host, "generate", prompt="a")["code"] == -32010
    host.ask("load", "back", model="demo", device="cpu")


# --- any bytes at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
known = {name for method in METHODS.values() for name in method.params.properties}
names = st.sampled_from(sorted(known - {"device"})) | st.text()
sensible = {"max_tokens": 3}  # a reply to a random prompt must not take for ever


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_no_bytes_end_it(host: Host, data: bytes) -> None:
    host.send_bytes(data + b"\n")
    assert host.ask("initialize", "alive")["protocol"] == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=json_values | st.fixed_dictionaries({"jsonrpc": json_values, "id": json_values, "params": json_values}))
def test_no_json_ends_it(host: Host, message: object) -> None:
    host.send_bytes(json.dumps(message).encode() + b"\n")
    assert host.ask("initialize", "alive")["protocol"] == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["generate", "chat", "initialize", "cancel"]) | st.text(),
    params=st.dictionaries(names, json_values, max_size=4),
)
def test_every_request_is_answered(host: Host, method: str, params: dict[str, object]) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": "any", "method": method, "params": {**params, **sensible}})
    host.send_bytes(line.encode() + b"\n")
    message = host.next()
    while not ("method" not in message and message["id"] == "any"):
        message = host.next()
    assert ("result" in message) != ("error" in message)
    assert message.get("error", {}).get("code") != -32603
    host.seen.clear()


# --- how it ends


def started(host: Host) -> None:
    host.ask("load", "l", model="demo", device="cpu")
    host.send("generate", "g", prompt=LONG, temperature=0, max_tokens=MANY)
    host.first_chunk("g")


def test_shutdown_ends_what_runs_and_answers_last() -> None:
    with Host() as host:
        started(host)
        host.send("shutdown", "s")
        assert host.answer("g")["result"]["finish_reason"] == "cancelled"
        assert host.rest()[-1] == {"jsonrpc": "2.0", "id": "s", "result": {}}
        assert host.exit_code() == 0


def test_it_ends_when_stdin_does() -> None:
    with Host() as host:
        started(host)
        host.end_stdin()
        assert host.answer("g")["result"]["finish_reason"] == "cancelled"
        assert host.exit_code() == 0


@pytest.mark.parametrize("ended_by", [b"", b'{"jsonrpc":"2.0","id":"s","method":"shutdown"}\n'])
def test_requests_that_are_piped_in_at_once_are_cancelled_and_stderr_says_why(ended_by: bytes) -> None:
    requests = [("load", {"device": "cpu"}), ("chat", {"messages": ASKED})]
    piped = [{"jsonrpc": "2.0", "id": method, "method": method, "params": params} for method, params in requests]
    lines = b"".join(json.dumps(request).encode() + b"\n" for request in piped)
    ended = subprocess.run(COMMAND, cwd=ROOT, input=lines + ended_by, capture_output=True, timeout=60, check=False)
    answers = {message["id"]: message for message in map(json.loads, ended.stdout.splitlines()) if "id" in message}
    assert answers["load"]["error"]["code"] == -32800
    assert answers["chat"]["result"] == {"text": "", "reasoning": "", "tool_calls": [], "message": None,
                                         "finish_reason": "cancelled", "stopped_by": None, "device": None,
                                         "prompt_tokens": 0, "cached_tokens": 0, "tokens": 0, "drafted_tokens": 0,
                                         "accepted_tokens": 0, "prefill_s": 0.0, "decode_s": 0.0}  # fmt: skip
    assert b"cancelled: 2. Wait for each answer" in ended.stderr
    assert ended.returncode == 0


def test_it_ends_quietly_when_nothing_waits() -> None:
    line = b'\n{"jsonrpc":"2.0","id":1,"method":"initialize"}\n'
    ended = subprocess.run(COMMAND, cwd=ROOT, input=line, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_models_own_end_is_told_by_its_token(host: Host, llm: embedllm.Model) -> None:
    expected = llm.chat(ASKED, Sampling(temperature=0))
    result = host.ask("chat", "own end", messages=ASKED, temperature=0)
    assert (result["finish_reason"], result["stopped_by"]) == ("stop", expected.stopped_by)
    assert isinstance(result["stopped_by"], int)


def test_a_line_without_its_end_is_read_when_stdin_ends() -> None:
    with Host() as host:
        host.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
        host.end_stdin()
        assert host.answer(1)["result"]["protocol"] == 1
        assert host.exit_code() == 0


def test_it_ends_when_nobody_reads_stdout() -> None:
    requests = [("load", {"device": "cpu"}), ("generate", {"prompt": LONG, "temperature": 0, "max_tokens": MANY})]
    with subprocess.Popen(COMMAND, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for method, params in requests:
            message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        while json.loads(process.stdout.readline()).get("method") != "chunk":
            pass
        process.stdout.close()
        assert process.wait(120) == 141


@pytest.mark.slow
def test_a_host_that_reads_nothing_ends_it_by_its_stdin() -> None:
    with subprocess.Popen(COMMAND, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n'
        process.stdin.write(line * 20_000)  # whose answers are more than pipe and queue hold
        process.stdin.close()
        assert process.wait(60) == 0
        process.stdout.close()


def test_it_does_not_wait_for_a_model_that_loads_for_ever() -> None:
    command = patched(
        "import time\nfrom embedllm.loading import load as opening\n"
        "from embedllm.integrations.worker import server as worker\n"
        "opening.open_model = lambda *_, **__: time.sleep(3600)\nworker._GRACE_S = 0.2"
    )
    with Host(command) as host:
        host.send("load", "l", model="demo")
        assert host.next()["method"] == "progress"
        assert host.ask("initialize", "meanwhile")["protocol"] == 1
        assert host.ask("devices", "meanwhile too")["devices"]
        host.end_stdin()
        assert host.exit_code() == 0


def test_nothing_but_messages_comes_on_stdout() -> None:
    command = patched("""
import os
from embedllm.loading import load as opening
load = opening.open_model
def noisy(*arguments, **options):
    print("noise from Python")
    os.write(1, b"noise from C")
    os.system("echo noise from a child")
    assert os.read(0, 1) == b""  # nor does it get at the host's messages
    return load(*arguments, **options)
opening.open_model = noisy
""")
    with Host(command) as host:
        host.ask("load", "l", model="demo", device="cpu")
        host.send("shutdown", "s")
        host.rest()  # each line is JSON, or this raises
        assert host.exit_code() == 0
        host.close()
        for source in (b"from Python", b"from C", b"from a child"):
            assert source in host.noise


def test_what_nobody_thought_of_is_answered_and_ends_it() -> None:
    command = patched("from embedllm.loading import load as opening\nopening.devices = lambda: 1 / 0")
    with Host(command) as host:
        host.send("devices", "d")
        assert host.answer("d")["error"]["code"] == -32603
        assert host.exit_code() == 1
