"""The client in docs/worker.md, in the language that it is written in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import embedllm
from embedllm import Sampling

PAGE = Path(__file__).parents[3] / "docs" / "worker.md"
CLIENT = PAGE.parents[1] / "samples" / "worker_clients" / "embedllm_worker.mjs"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no Node.js")
@pytest.mark.parametrize("asked", ["list files by size", None])
def test_the_client_of_the_page_shows_the_reply_or_the_error(asked: str | None, tmp_path: Path) -> None:
    found = re.search(r"^```js\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    assert NODE is not None
    code = found[1] if asked else found[1].replace('"list files by size"', "5")
    client = tmp_path / "client.mjs"
    client.write_text(code, encoding="utf-8")
    shutil.copy(CLIENT, tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "EMBEDLLM_DEVICE": "cpu"}
    ended = subprocess.run([NODE, client], env=environment, capture_output=True, text=True, timeout=60, check=False)
    if asked is None:
        assert "'messages.0.content' is 5" in ended.stderr
        assert ended.returncode == 1
        return
    assert ended.returncode == 0, ended.stderr
    with embedllm.load("demo", device="cpu") as llm:
        assert ended.stdout == llm.chat([{"role": "user", "content": asked}], Sampling(temperature=0)).text
