"""The JavaScript API of a browser in Node: a page and its worker with a MessageChannel between them, both engines."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from embedllm.package.package import MANIFEST, read_package
from tests.web.test_python import DEFAULTS, TEMPLATE, template_engine

WEB = Path(__file__).parents[2] / "bindings_web"
TESTS = Path(__file__).parent / "node"
PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that GPT-2 spells as themselves
LETTERS = {byte: chr(byte) for byte in PLAIN}
LETTERS |= {byte: chr(256 + place) for place, byte in enumerate(sorted(set(range(256)) - set(PLAIN)))}
BYTES = {
    "model": {"type": "BPE", "vocab": {letter: byte for byte, letter in LETTERS.items()}, "merges": []},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [{"id": 256, "content": "<end>", "special": True}],
}


def data_url(path: Path) -> str:
    """Node fetches no files."""
    return f"data:application/zip;base64,{base64.b64encode(path.read_bytes()).decode()}"


def test_the_api_over_a_worker(
    node: str, node_modules: Path, web_wheel: Path, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_package("llama")
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["tokens"]["stop"] = [256]
    texts = {
        MANIFEST: json.dumps(manifest),
        "chat_template.jinja": "{{ tools[0].function.name if tools }}" + TEMPLATE,  # else a message describes them
        "generation_config.json": json.dumps(DEFAULTS),
        "tokenizer.json": json.dumps(BYTES),  # read by grammars; the made up tokenizer needs none
    }
    package = read_package(folder)
    jinja = data_url(template_engine(tmp_path / "jinja.zip"))
    urls = {
        "jinja": (node_modules / "@huggingface/jinja/dist/index.js").as_uri(),
        "pyodide": (node_modules / "pyodide/pyodide.mjs").as_uri(),
        "wheel": data_url(web_wheel),
        "jinja2": jinja,
        "markupsafe": jinja,
    }
    model = {"vocabulary": package.decoder.vocabulary, "context": package.context, "texts": texts}
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"urls": urls, "model": model}), encoding="utf-8")
    command = [node, "--test", "--test-reporter=spec", *map(str, sorted(TESTS.glob("api*.test.mjs")))]
    environment = {**os.environ, "EMBEDLLM_API_TEST": str(given)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_libraries_are_loaded_at_the_versions_that_are_tested() -> None:
    text = (WEB / "src/libraries.js").read_text(encoding="utf-8")
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    known = {**package["dependencies"], package["name"]: package["version"]}
    found = re.findall(r"\{NPM\}/((?:@[\w-]+/)?[\w-]+)@([\d.]+)/", text)
    assert found
    assert [(name, version) for name, version in found if known.get(name) != version] == []
