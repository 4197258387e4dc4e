"""The clients of the worker, which are made of its schema, with the cases of the conformance suite."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from samples.directml_plugin.extension.pythonpath.embedllm_client import Client, WorkerError
from tests.integrations.worker.conformance import CASES, Case
from tests.support.worker_host import COMMAND, ROOT, Host
from tools.make_worker_clients import CLIENTS, clients, openrpc

NODE, CSC, MONO = shutil.which("node"), shutil.which("mcs"), shutil.which("mono")
TSC = ROOT / "bindings_web" / "node_modules" / ".bin" / "tsc"
DRIVERS = Path(__file__).parent / "clients"
_VARYING = ("prefill_s", "decode_s", "cached_tokens", "drafted_tokens", "accepted_tokens")
_PATIENCE_S = 120.0

DOCUMENT = openrpc()
Outcome = Mapping[str, Any]  # result or error, and chunks


@pytest.mark.parametrize(("path", "text"), [pytest.param(*row, id=row[0].name) for row in clients().items()])
def test_the_files_are_current(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "run python -m tools.make_worker_clients --write"


def test_every_method_and_every_kind_of_error_has_a_case() -> None:
    assert {case.method for case in CASES} - {"explode"} == {one["name"] for one in openrpc()["methods"]} - {"cancel"}
    assert {case.error for case in CASES} >= {None, -32601, -32602, -32001, -32002, -32004, -32010}


# --- the outcomes of all cases by each client


def by_python(folder: Path) -> list[Outcome]:
    """Through the client in Python, which has no types; texts are all that it tells of chunks."""
    found: list[Outcome] = []
    with Client(COMMAND) as client:
        for case in CASES:
            texts: list[str] = []
            enough = threading.Event()

            def take(text: str, case: Case = case, texts: list[str] = texts, enough: threading.Event = enough) -> None:
                texts.append(text)
                if len(texts) == case.cancel_after:
                    enough.set()

            request = client.request(case.method, case.params or {}, take)
            if case.cancel_after is not None:
                assert case.cancel_after == 0 or enough.wait(_PATIENCE_S)
                request.cancel()
            outcome: dict[str, Any] = {"chunks": [{"text": text} for text in texts]}
            try:
                outcome["result"] = request.result(_PATIENCE_S)
                outcome["chunks"] = [{"text": text} for text in texts]
            except WorkerError as error:
                outcome["error"] = {"code": error.code, "message": str(error), "data": error.data}
            found.append(outcome)
    return found


def by_javascript(folder: Path) -> list[Outcome]:
    if NODE is None:
        pytest.skip("there is no Node.js")
    return driven([NODE, str(DRIVERS / "driver.mjs"), str(CLIENTS / "embedllm_worker.mjs")], folder, COMMAND)


def by_csharp(folder: Path) -> list[Outcome]:
    if CSC is None or MONO is None:
        pytest.skip("there is no Mono: apt-get install mono-mcs mono-runtime libmono-system-core4.0-cil")
    program = folder / "driver.exe"
    sources = [CLIENTS / "EmbedllmWorker.cs", DRIVERS / "Driver.cs"]
    made = subprocess.run([CSC, "-langversion:7", "-warnaserror", f"-out:{program}", *map(str, sources)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    return driven([MONO, str(program)], folder, [COMMAND[0], " ".join(COMMAND[1:])])


def driven(driver: Sequence[str], folder: Path, command: Sequence[str]) -> list[Outcome]:
    """What a driver prints. command: of the worker."""
    cases = folder / "cases.json"
    cases.write_text(json.dumps([case.sent for case in CASES]), encoding="utf-8")
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    environment.pop("EMBEDLLM_DEVICE", None)
    ended = subprocess.run([*driver, str(cases), *command], cwd=ROOT, env=environment, capture_output=True, text=True,
                           timeout=_PATIENCE_S, check=False)  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


CLIENTS_BY_NAME = {"python": by_python, "javascript": by_javascript, "csharp": by_csharp}


@pytest.fixture(scope="module", params=CLIENTS_BY_NAME)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Outcome]]:
    """A client's name, and the outcomes of the cases."""
    return request.param, CLIENTS_BY_NAME[request.param](tmp_path_factory.mktemp(request.param))


@pytest.mark.slow
def test_what_comes_of_each_case_is_what_is_expected(
    client: tuple[str, list[Outcome]], reference: list[Outcome]
) -> None:
    name, outcomes = client
    assert len(outcomes) == len(CASES)
    for case, outcome, other in zip(CASES, outcomes, reference, strict=True):
        check(case, outcome, has_all=name != "python")
        if case.cancel_after is None:
            assert plain(outcome) == plain(other), case.name


@pytest.fixture(scope="module")
def reference() -> list[Outcome]:
    """The same by the worker's own messages, without a client."""
    with Host() as host:
        found: list[Outcome] = []
        for place, case in enumerate(CASES):
            host.send_bytes(json.dumps({"jsonrpc": "2.0", "id": place, "method": case.method, "params": case.params}
                                       ).encode() + b"\n")  # fmt: skip
            if case.cancel_after is not None:
                host.send("cancel", id=place)
            answer = host.answer(place)
            found.append({name: answer[name] for name in ("result", "error") if name in answer})
    return found


def check(case: Case, outcome: Outcome, *, has_all: bool) -> None:
    """has_all: the client gives chunks as they are."""
    if case.error is not None:
        error = outcome["error"]
        assert (error["code"], case.says in error["message"]) == (case.error, True), (case.name, error)
        assert error["data"].items() >= case.data.items(), (case.name, error)
        return
    assert "result" in outcome, (case.name, outcome)
    result = outcome["result"]
    assert case.result.items() <= result.items(), (case.name, result)
    schema = next(one["result"]["schema"] for one in DOCUMENT["methods"] if one["name"] == case.method)
    assert_follows(schema, result, case)
    if case.method in ("generate", "chat"):
        chunks = outcome["chunks"]
        assert "".join(chunk["text"] for chunk in chunks) == result["text"], case.name
        if has_all:
            for chunk in chunks:
                assert_follows({"$ref": "#/components/schemas/Chunk"}, {"id": 1, **chunk}, case)
            for part in case.has:
                assert any(chunk.get(part) for chunk in chunks), (case.name, part)
            pieces = [delta for chunk in chunks for delta in chunk.get("call_deltas", [])]
            for call in result["tool_calls"]:
                written = "".join(one["arguments"] for one in pieces if one["id"] == call["id"])
                assert json.loads(written) == call["arguments"], case.name


def assert_follows(schema: Mapping[str, Any], found: Mapping[str, Any], case: Case) -> None:
    """By the schema; members that are null may be missing, as C# leaves them out."""
    names = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    whole = {**dict.fromkeys(names), **found} if "Chunk" not in schema["$ref"] else found
    errors = Draft202012Validator({**schema, "components": DOCUMENT["components"]}).iter_errors(whole)
    assert not list(errors), (case.name, found)


def plain(outcome: Outcome) -> object:
    """What is the same in each run: no times, no ids of calls, and no nulls, which C# leaves out."""
    if "error" in outcome:
        return {
            name: value for name, value in outcome["error"].items() if value
        }  # clients give data that are missing as {}
    found = {name: value for name, value in outcome["result"].items() if name not in _VARYING}
    found.pop("devices", None)  # what is free of their memory varies
    text = re.sub(r'"id": "[^"]*"', '"id": ""', json.dumps(found, sort_keys=True))
    return _without_nulls(json.loads(text))


def _without_nulls(found: Any) -> Any:  # JSON
    if isinstance(found, dict):
        return {name: _without_nulls(value) for name, value in found.items() if value is not None}
    return [_without_nulls(one) for one in found] if isinstance(found, list) else found


@pytest.mark.skipif(not TSC.exists(), reason="TypeScript is not installed: npm install in bindings_web")
@pytest.mark.slow
def test_the_types_of_the_javascript_client_know_right_from_wrong(tmp_path: Path) -> None:
    for name in ("embedllm_worker.mjs", "embedllm_worker.d.mts"):
        shutil.copy(CLIENTS / name, tmp_path)
    (tmp_path / "use.mts").write_text(
        """import { type Chunk, WorkerClient } from "./embedllm_worker.mjs";
const worker = new WorkerClient(["embedllm", "worker"]);
const onChunk = (chunk: Chunk) => console.log(chunk.text);
const reply = await worker.chat({ messages: [{ role: "user", content: "a" }], top_k: 5 }, { onChunk });
const text: string = reply.text;
await worker.chat({ messages: [reply.message ?? { role: "user", content: text }] });
// @ts-expect-error: there is no such parameter
await worker.generate({ prompt: "a", temprature: 1 });
// @ts-expect-error: it is a number
await worker.generate({ prompt: "a", temperature: "hot" });
// @ts-expect-error: the prompt is missing
await worker.generate({});
""",
        encoding="utf-8",
    )
    options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom", "--module", "nodenext", "--types"]
    done = subprocess.run([TSC, *options, "", "use.mts"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
