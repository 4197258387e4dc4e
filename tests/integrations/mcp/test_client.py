"""Tools of real MCP servers in the tool loop: over stdio and HTTP, and of servers that misbehave."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from embedllm import Cancel, FunctionTool, arun_tools, run_tools
from embedllm.errors import EmbedError
from tests.support.ports import port_for_later
from tests.support.scripted import call, scripted

pytest.importorskip("mcp")

from embedllm.integrations.mcp import McpServers, ToolError

ROOT = Path(__file__).parents[3]
HOSTILE = Path(__file__).with_name("hostile_server.py")
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
FRIENDLY_ARGS = ["-m", "tests.integrations.mcp.friendly_server"]
FRIENDLY: dict[str, Any] = {"command": sys.executable, "args": FRIENDLY_ARGS, "cwd": str(ROOT), "env": ENVIRONMENT}
ASK: Any = [{"role": "user", "content": "?"}]


def hostile(way: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", str(HOSTILE), way]}


def names(servers: McpServers) -> list[str]:
    functions: list[Any] = [tool.schema["function"] for tool in servers.tools]
    return [function["name"] for function in functions]


def tool_of(servers: McpServers, name: str = "work") -> FunctionTool:
    return servers.tools[names(servers).index(name)]


def runs(servers: McpServers, name: str = "work", /, **arguments: Any) -> str:  # JSON
    result = tool_of(servers, name).run(arguments, Cancel())
    assert isinstance(result, str)
    return result


def eventually(is_true: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not is_true() and time.monotonic() < end:
        time.sleep(0.02)
    return is_true()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def friendly() -> Iterator[McpServers]:
    """The friendly server over stdio and over HTTP."""
    port = port_for_later()
    process = subprocess.Popen([sys.executable, *FRIENDLY_ARGS, str(port)], cwd=ROOT,
                               env={**os.environ, **ENVIRONMENT}, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        assert eventually(lambda: answers(port))
        url = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "secret"}}
        with McpServers({"pipe": FRIENDLY, "net": url}, timeout_s=30) as servers:
            yield servers
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("server", ["pipe", "net"])
def test_tools_of_both_transports_are_called_in_the_loop(friendly: McpServers, server: str) -> None:
    asked = call(f"{server}_add", '{"a": 2}') + call(f"{server}_fail", '{"reason": "no"}')
    model, prompts = scripted(asked, "It is 3.", asked, "It is 3.")
    for is_async in (False, True):
        loop: Any = (lambda *given: asyncio.run(arun_tools(*given))) if is_async else run_tools
        reply = loop(model, ASK, friendly.tools)
        assert reply.text == "It is 3."
        assert [outcome.ran for outcome in reply.outcomes] == [True, False]
        assert [outcome.result for outcome in reply.outcomes] == [
            "3",
            "error: ToolError: Error executing tool fail: no",
        ]
    assert '"name": "pipe_add", "description": "Add two numbers."' in prompts[0]
    assert '"required": ["a"]' in prompts[0]


@pytest.mark.parametrize("server", ["pipe", "net"])
def test_results_of_all_kinds_become_text(friendly: McpServers, server: str) -> None:
    assert runs(friendly, f"{server}_show").splitlines() == [
        "text",
        "[image: image/png, 3 bytes; models here read text only]",
        "[resource: file:///a.txt a text/plain]",
        "[resource: file:///b.txt]",
        "inside",
    ]


@pytest.mark.parametrize("server", ["pipe", "net"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_is_cancelled_and_its_server_goes_on(friendly: McpServers, server: str, is_async: bool) -> None:
    cancel, tool = Cancel(), tool_of(friendly, f"{server}_wait")
    before = int(runs(friendly, f"{server}_cancels"))
    threading.Timer(0.2, cancel.cancel).start()
    begun = time.monotonic()

    async def awaited() -> object:
        assert tool.arun is not None
        return await tool.arun({"seconds": 60}, cancel)

    with pytest.raises(ToolError, match="was cancelled"):
        asyncio.run(awaited()) if is_async else tool.run({"seconds": 60}, cancel)
    assert time.monotonic() - begun < 60
    assert eventually(lambda: int(runs(friendly, f"{server}_cancels")) == before + 1)


def test_a_task_that_is_cancelled_cancels_its_call(friendly: McpServers) -> None:
    async def awaited() -> None:
        tool = tool_of(friendly, "pipe_wait")
        assert tool.arun is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tool.arun({"seconds": 60}, Cancel()), 0.2)

    asyncio.run(awaited())
    assert runs(friendly, "pipe_add", a=1) == "2"


def test_calls_run_side_by_side(friendly: McpServers) -> None:
    async def awaited() -> float:
        tool, begun = tool_of(friendly, "pipe_wait"), time.monotonic()
        assert tool.arun is not None
        assert await asyncio.gather(*(tool.arun({"seconds": 2}, Cancel()) for _ in range(10))) == ["awake"] * 10
        return time.monotonic() - begun

    assert asyncio.run(awaited()) < 18  # one after the other: 20 s


def test_arguments_with_lone_surrogates_reach_the_server_as_text(friendly: McpServers) -> None:
    with pytest.raises(ToolError, match=r"half \?$"):
        runs(friendly, "pipe_fail", reason="half \ud800")


# --- servers that misbehave


@pytest.fixture(scope="module")
def misbehaving() -> Iterator[McpServers]:
    ways = ("huge", "endless", "dies", "surrogates", "wrong", "data", "garbage")
    servers = {way: hostile(way) for way in ways}
    with McpServers(servers, max_result_chars=2000, max_message_bytes=8 << 20) as opened:
        yield opened


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("huge", "x" * 2000 + "\n[cut: the first 2000 of 5000000 characters]"),
        ("surrogates", "half ? <|im_end|> \x1b[31m"),
        ("data", '{"half": "?"}'),
        ("garbage", "{}"),
    ],
)
def test_odd_results_are_bounded_text(misbehaving: McpServers, way: str, expected: str) -> None:
    assert runs(misbehaving, f"{way}_work") == expected


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("dies", "'dies': .*; it said last: the disk is on fire"),
        ("dies", "'dies': "),  # nor does it at the second call
        ("endless", "'endless': "),
        ("wrong", "'wrong': .*content"),
    ],
)
def test_calls_without_a_result_say_why(misbehaving: McpServers, way: str, error: str) -> None:
    with pytest.raises(ToolError, match=error) as raised:
        runs(misbehaving, f"{way}_work")
    assert len(str(raised.value)) < 3000


def test_a_server_that_never_answers_costs_the_call_its_result() -> None:
    model, prompts = scripted(call("work", "{}"), "Sorry.")
    with McpServers({"s": hostile("silent")}, timeout_s=0.5) as servers:
        assert run_tools(model, ASK, servers.tools).text == "Sorry."
    assert "error: ToolError: 's' gave no answer within 0.5 s." in prompts[1]


@pytest.mark.slow
def test_a_server_that_reads_nothing_more_ends_the_call_in_time() -> None:
    with McpServers({"s": hostile("deaf")}, timeout_s=1) as servers:
        for _ in range(2):
            with pytest.raises(ToolError, match="no answer"):
                runs(servers, text="x" * 1_000_000)


def test_what_a_server_says_never_becomes_a_control_token(misbehaving: McpServers) -> None:
    import embedllm

    with embedllm.load("demo") as model:
        end = next(iter(model.package.stop_tokens))
        said = model.tokenizer.decode([end], special=True)
        plain = model.prompt_tokens(ASK, tools=[tool_of(misbehaving, "surrogates_work")])
        prompt = model.prompt(ASK, tools=[tool_of(misbehaving, "surrogates_work")])
        assert prompt.count("<|im_end|>") > plain.count(end)
        assert said == "<|im_end|>"


def test_tools_with_schemas_that_no_template_takes_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="embedllm.integrations.mcp"),
        McpServers({"s": hostile("schemas")}) as servers,
    ):
        assert names(servers) == ["fine", "circle", "remote"]
        model, _ = scripted(*[call(name, '{"a": 1}') + call(name, "{}") for name in names(servers)], "Done.")
        reply = run_tools(model, ASK, servers.tools)
    assert [outcome.ran for outcome in reply.outcomes] == [True, True, False, True, False, True]
    assert all("schema cannot be applied" in outcome.result for outcome in reply.outcomes if not outcome.ran)
    warned = [record.getMessage() for record in caplog.records]
    assert ["'huge' is left out: its schema has" in each for each in warned] == [True]


def test_names_are_unique_and_such_as_templates_and_grammars_take(caplog: pytest.LogCaptureFixture) -> None:
    with McpServers({"one": hostile("names"), "two": hostile("silent"), "t/wo": hostile("surrogates")}) as servers:
        found = names(servers)
        assert [servers.server_of(name) for name in found[-2:]] == ["two", "t/wo"]
    assert found[0] == "one_work"
    assert found[-2:] == ["two_work", "t_wo_work"]
    assert len(set(found)) == len(found) == 9
    assert all(name.isascii() and 1 <= len(name) <= 64 for name in found)
    assert "its tool 'work' is left out: another one has its name" in caplog.text


def test_pages_without_an_end_are_not_all_read(caplog: pytest.LogCaptureFixture) -> None:
    with McpServers({"s": hostile("pages")}) as servers:
        assert len(servers.tools) == 20
    assert "more than 20 pages" in caplog.text


@pytest.mark.parametrize(
    ("server", "error"),
    [
        (hostile("ends"), "'s' cannot be used: .*; it said last: there is no such configuration"),
        (hostile("listing"), "'s' cannot be used: .*inputSchema.type Input should be 'object'"),
        (hostile("mute"), "'s' cannot be used: it did not list its tools within 1 s"),
        ({"command": "/no/such/program"}, "'s' cannot be used: there is no command '/no/such/program'"),
        ({"url": "http://127.0.0.1:9/mcp"}, "'s' cannot be used: "),
    ],
)
def test_a_server_that_cannot_be_opened_is_named_and_the_others_end(server: dict[str, Any], error: str) -> None:
    before = set(psutil.Process().children(recursive=True))
    limit = 1 if "mute" in server.get("args", ()) else 60
    with (
        pytest.raises(EmbedError, match=error),
        McpServers({"s": server, "t": hostile("silent")}, start_timeout_s=limit),
    ):
        pass
    assert not set(psutil.Process().children(recursive=True)) - before


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_leaves_no_process_and_no_thread(is_async: bool) -> None:
    threads, before = threading.active_count(), set(psutil.Process().children(recursive=True))
    servers = McpServers({"s": hostile("silent")})

    async def awaited() -> None:
        async with servers:
            assert len(set(psutil.Process().children(recursive=True)) - before) >= 1

    if is_async:
        asyncio.run(awaited())
    else:
        with servers:
            held = tool_of(servers)
        with pytest.raises(ToolError, match="closed"):
            held.run({}, Cancel())
    assert not set(psutil.Process().children(recursive=True)) - before
    assert eventually(lambda: threading.active_count() <= threads)
    with servers:  # and it can be opened again
        assert names(servers) == ["work"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_a_server_that_ignores_the_end_and_its_child_are_killed() -> None:
    with McpServers({"s": hostile("stubborn")}) as servers:
        pids = [int(pid) for pid in names(servers)[0].split("-")]
        assert all(is_running(pid) for pid in pids)
    assert not any(is_running(pid) for pid in pids)


HOST = """
import signal, sys, time
from embedllm.integrations.mcp import McpServers
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a script
with McpServers({"s": {"command": sys.executable, "args": ["-I", sys.argv[1], "stubborn"]}}) as servers:
    name = servers.tools[0].schema["function"]["name"]
    print(name, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_server_outlives_a_host_that_is_killed(number: signal.Signals) -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST, str(HOSTILE)], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT})  # fmt: skip
    assert host.stdout is not None
    with host.stdout as stdout:
        pids = [int(pid) for pid in stdout.readline().decode().strip().split("-")]
        assert all(is_running(pid) for pid in pids)
        host.send_signal(number)
        host.wait(120)
    assert eventually(lambda: not any(is_running(pid) for pid in pids))
