"""Our own JavaScript stays small: what a page and its worker load, minified, the libraries of others left out.

The bound is 60,000 bytes for the engine that a first reply waits for; docs/web.md says what all of it is spent on.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

WEB = Path(__file__).parents[2] / "bindings_web"
# bytes, some above what they were in November 2026: they grow by a decision, not by the way
LIMITS = {
    "the page": 16_000,
    "OpenAI's shapes": 3_800,
    "the worker": 51_500,
    "downloads": 8_000,
    "WebGPU": 43_000,
    "WebAssembly": 4_000,
    "recurrent states": 3_000,
    "saved conversations": 6_000,
    "Python": 6_100,
    "JavaScript": 60_000,  # what a first reply waits for
    "tools": 3_600,
    "bans of tokens": 1_800,
    "roles": 500,
    "trial of devices": 2_500,
    "structured output": 34_000,
    "formats in templates": 4_800,
    "images on the page": 3_000,
    "images of histories": 700,
    "contents in parts": 800,
    "images": 13_500,
    "images in tiles": 6_800,
    "images of one size": 2_300,
    "images of any size": 10_000,
    "images of LFM2-VL": 3_100,
    "images of InternVL": 2_600,
}
LATER = {
    "openai": "OpenAI's shapes",
    "renew": "downloads",
    "update": "downloads",
    "no_room": "downloads",
    "webgpu_engine": "WebGPU",
    "probe": "WebGPU",
    "wasm_engine": "WebAssembly",
    "wasm_states": "recurrent states",
    "webgpu_states": "recurrent states",
    "saved_conversations": "saved conversations",
    "engine_python": "Python",
    "engine_javascript": "JavaScript",
    "generic_tools": "tools",
    "bans": "bans of tokens",
    "roles": "roles",
    "trials": "trial of devices",
    "trial": "trial of devices",
    "grammar": "structured output",
    "response_format": "structured output",
    "format": "formats in templates",
    "blobs": "images on the page",
    "data_url": "images of histories",
    "content_form": "contents in parts",
    "prompt": "images",
    "processor": "images in tiles",
    "fixed_size": "images of one size",
    "any_size": "images of any size",
    "lfm2_vl": "images of LFM2-VL",
    "internvl": "images of InternVL",
    "foreseen": "Python",  # its parts are of the engine "javascript", too
}


@pytest.fixture(scope="module")
def sizes(node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Bytes of what is loaded together; all but the page's and the worker's when they are needed."""
    esbuild = node_modules / ".bin/esbuild"
    if not esbuild.exists():
        pytest.skip("esbuild is not here; install it with: cd bindings_web && npm ci")
    out = tmp_path_factory.mktemp("bundles")
    found = dict.fromkeys(LIMITS, 0)
    for entry, whole in (("index", "the page"), ("worker", "the worker")):
        meta = out / f"{entry}.json"
        command = [str(esbuild), f"src/{entry}.js", "--bundle", "--minify", "--format=esm", "--splitting"]
        done = subprocess.run([*command, f"--metafile={meta}", f"--outdir={out / entry}"], cwd=WEB, capture_output=True,
                              text=True, check=False, env={**os.environ, "NO_COLOR": "1"})  # fmt: skip
        assert done.returncode == 0, done.stderr
        outputs: dict[str, dict[str, Any]] = json.loads(meta.read_text(encoding="utf-8"))["outputs"]
        for output in outputs.values():
            assert not [name for name in output["inputs"] if "node_modules" in name], "a library is bundled"
        entries = {Path(output["entryPoint"]).stem: path for path, output in outputs.items() if "entryPoint" in output}
        counted: set[str] = set()
        for stem, part in {entry: whole, **LATER}.items():
            if stem in entries:
                needed = statically_imported(outputs, entries[stem]) - counted
                found[part] += sum(outputs[path]["bytes"] for path in needed)
                counted |= needed
        assert counted == set(outputs), "a module is loaded later that LATER does not name"
    return found


def statically_imported(outputs: dict[str, dict[str, Any]], path: str) -> set[str]:
    """A bundle and all that is loaded with it."""
    needed, more = set[str](), [path]
    while more:
        needed.add(one := more.pop())
        imports = outputs[one]["imports"]
        more += [each["path"] for each in imports if each["kind"] == "import-statement" and each["path"] not in needed]
    return needed


@pytest.mark.parametrize("part", LIMITS)
def test_own_javascript_is_small(part: str, sizes: dict[str, int]) -> None:
    assert 0 < sizes[part] <= LIMITS[part], sizes
