"""Several models on one server, with memory for one of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from embedllm.loading.options import LoadOptions
from embedllm.server.app import create_app
from embedllm.server.memory_need import memory_need
from embedllm.server.model_pool import ModelPool, ServedModel
from embedllm.server.settings import ServerSettings
from tests.support.peft_folders import write_demo_adapter

ASK = [{"role": "user", "content": "list files by size"}]

LONG = {"type": "array", "items": {"type": "integer"}, "minItems": 800}  # of a reply that takes longer than 0.2 s


def served(name: str, **options: Any) -> ServedModel:  # noqa: ANN401  # as load() has them
    return ServedModel(name=name, path="demo", options=LoadOptions(device="cpu", **options))


def test_models_that_do_not_fit_together_take_turns_in_all_dialects() -> None:
    one = memory_need(served("a")).bytes

    async def main() -> None:
        async with ModelPool([served("a"), served("b"), served("c")], memory=one + one // 2) as pool:
            app = httpx.ASGITransport(create_app(pool, ServerSettings()))
            async with httpx.AsyncClient(transport=app, base_url="http://localhost", timeout=60) as http:

                async def ask(name: str, path: str, stream: bool) -> str:
                    body = {"model": name, "messages": ASK, "input": "list files by size", "max_tokens": 4,
                            "max_output_tokens": 4, "stream": stream}  # fmt: skip
                    response = await http.post(path, json=body)
                    assert response.status_code == 200, response.text
                    return response.text

                paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
                asked = [(name, path, stream) for stream in (False, True) for path in paths for name in "abc"]
                replies = await asyncio.gather(*(ask(*one) for one in asked))
                assert all(f'"model":"{name}"' in text for (name, *_), text in zip(asked, replies, strict=True))
                listed = (await http.get("/v1/models")).json()["data"]
                states = sorted(entry["state"] for entry in listed)
                assert states == ["asleep", "asleep", "loaded"]

    asyncio.run(main())


def test_adapters_are_models_of_their_own_by_name(tmp_path: Path) -> None:
    adapters = {"sql": write_demo_adapter(tmp_path / "sql", 1)}

    async def main() -> None:
        async with ModelPool([served("demo", adapters=adapters)]) as pool:
            app = httpx.ASGITransport(create_app(pool, ServerSettings()))
            async with httpx.AsyncClient(transport=app, base_url="http://localhost", timeout=60) as http:
                logprobs: dict[str, float] = {}
                for name in ("demo", "demo:sql", "sql"):
                    body = {"model": name, "input": "tell me a poem", "max_output_tokens": 2, "top_logprobs": 1}
                    reply = (await http.post("/v1/responses", json={**body, "temperature": 0})).json()
                    assert reply["model"] == ("demo" if name == "demo" else "demo:sql")
                    logprobs[name] = reply["output"][0]["content"][0]["logprobs"][0]["logprob"]
                assert logprobs["demo:sql"] == pytest.approx(logprobs["sql"], rel=0.05)
                assert logprobs["demo"] != pytest.approx(logprobs["sql"], rel=0.1)
                listed = (await http.get("/v1/models")).json()["data"]
                assert [entry["id"] for entry in listed] == ["demo", "demo:sql"]
                unknown = await http.post("/v1/messages", json={"model": "demo:x", "messages": ASK, "max_tokens": 2})
                assert unknown.status_code == 404
                assert "it has: 'sql'" in unknown.json()["error"]["message"]

    asyncio.run(main())


def test_an_error_within_a_stream_ends_it_in_the_form_of_its_dialect() -> None:
    """The time limit of a reply is over in the middle of it."""

    async def main() -> None:
        async with ModelPool([served("demo")]) as pool:
            app = httpx.ASGITransport(create_app(pool, ServerSettings(request_timeout_s=0.2)))
            async with httpx.AsyncClient(transport=app, base_url="http://localhost", timeout=60) as http:
                form = {"format": {"type": "json_schema", "name": "long", "schema": LONG}}
                body = {"messages": ASK, "input": "list files", "max_tokens": 1900, "max_output_tokens": 1900,
                        "output_config": form, "text": form, "stream": True}  # fmt: skip
                lines: dict[str, list[str]] = {}
                request_ids: dict[str, str] = {}
                for path in ("/v1/messages", "/v1/responses"):
                    response = await http.post(path, json=body)
                    assert response.status_code == 200
                    lines[path] = [line for line in response.text.split("\n") if line]
                    request_ids[path] = response.headers["request-id"]
                assert lines["/v1/messages"][-2] == "event: error"
                assert '"type":"timeout_error"' in lines["/v1/messages"][-1]
                assert f'"request_id":"{request_ids["/v1/messages"]}"' in lines["/v1/messages"][-1]
                assert lines["/v1/responses"][-2] == "event: response.failed"
                assert '"status":"failed"' in lines["/v1/responses"][-1]
                assert '"code":"server_error"' in lines["/v1/responses"][-1]
                whole = await http.post("/v1/messages", json={**body, "stream": False})
                assert (whole.status_code, whole.json()["error"]["type"]) == (408, "timeout_error")

    asyncio.run(main())


_SLEEPING = """
import asyncio, psutil
from embedllm.backends.system.host_memory import limit_heaps
limit_heaps(2)
from embedllm.loading.options import LoadOptions
from embedllm.server.app import create_app
from embedllm.server.model_pool import ModelPool, ServedModel
import httpx

def bytes_now():
    return psutil.Process().memory_full_info().uss

async def main():
    served = ServedModel(name="demo", path="demo", options=LoadOptions(device="cpu"))
    async with ModelPool([served], idle_seconds=0.05) as pool:
        app = httpx.ASGITransport(create_app(pool))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost", timeout=60) as http:
            await http.get("/v1/models")
            empty = bytes_now()
            for turn in range(5):
                body = {"messages": [{"role": "user", "content": str(turn)}], "max_tokens": 4}
                assert (await http.post("/v1/messages", json=body)).status_code == 200
                while pool.listed()[0].state != "asleep":
                    await asyncio.sleep(0.02)
            print((bytes_now() - empty) >> 20)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="heaps of glibc")
def test_a_server_whose_model_sleeps_takes_at_most_60_mib_more_than_an_empty_one() -> None:
    found = subprocess.run([sys.executable, "-c", _SLEEPING], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) <= 60
