"""Images in requests of each dialect, to a model that sees and to one that does not."""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import embedllm
from embedllm.export import Recipe, convert
from tests.server.serving import serving
from tests.support.vision import TILE_TOKENS, chat_checkpoint, gemma_chat_checkpoint


def png() -> str:
    file = io.BytesIO()
    Image.radial_gradient("L").resize((20, 20)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


URL = f"data:image/png;base64,{png()}"
TEXT = "what is it?"


def chat(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}


def responses(url: str) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": TEXT}, {"type": "input_image", "image_url": url}]
    return {"input": [{"role": "user", "content": parts}], "max_output_tokens": 16}


def messages(url: str) -> dict[str, Any]:
    source = {"type": "url", "url": url}
    if url.startswith("data:"):
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    parts = [{"type": "text", "text": TEXT}, {"type": "image", "source": source}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}


DIALECTS = {"/v1/chat/completions": chat, "/v1/responses": responses, "/v1/messages": messages}


def post(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("seeing")
    folder: Path = convert(chat_checkpoint(root / "checkpoint"), root / "package", Recipe(bits=32))
    with embedllm.load(folder, device="cpu") as llm, serving(model=llm) as served:
        yield served.url


@pytest.mark.parametrize("path", DIALECTS)
def test_an_image_is_part_of_the_prompt(seeing: str, path: str) -> None:
    status, reply = post(f"{seeing}{path}", {"model": "demo", **DIALECTS[path](URL)})
    assert status == 200, reply
    counts = reply["usage"]
    assert counts.get("prompt_tokens", 0) + counts.get("input_tokens", 0) + counts.get("cache_read_input_tokens", 0) > (
        5 * TILE_TOKENS
    )


def test_gemma_3_sees_images_of_requests(tmp_path: Path) -> None:
    folder = convert(gemma_chat_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", Recipe(bits=32))
    with embedllm.load(folder, device="cpu") as llm, serving(model=llm) as served:
        for path in DIALECTS:
            status, reply = post(f"{served.url}{path}", {"model": "demo", **DIALECTS[path](URL)})
            assert status == 200, reply
            assert sum(count for count in reply["usage"].values() if isinstance(count, int)) > TILE_TOKENS


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1/a.png", "downloads no images"),
        ("file:///etc/hostname", "downloads no images"),
        ("/etc/hostname", "data URL"),
        ("data:image/png;base64,AAAA", "cannot be read"),
    ],
)
def test_what_is_no_image_in_the_request_is_refused(seeing: str, path: str, url: str, words: str) -> None:
    status, reply = post(f"{seeing}{path}", {"model": "demo", **DIALECTS[path](url)})
    assert status == 400
    assert words in reply["error"]["message"]
    assert reply["error"]["type"] == "invalid_request_error"


def test_a_model_of_text_says_that_it_takes_none() -> None:
    with serving() as served:
        for path, body in DIALECTS.items():
            status, reply = post(f"{served.url}{path}", {"model": "demo", **body(URL)})
            assert status == 400
            assert "reads text only: it takes no images" in reply["error"]["message"]
