"""Python that a reload restores from a snapshot; a start from the beginning where that is damaged or not there."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.web.support.calls import LONG_S
from tests.web.support.page import Page
from tests.web.support.server import ROOT, WebServer
from tests.web.support.site import urls

pytestmark = pytest.mark.browser

START = """
const { startPython } = await import("/src/worker/python_start.js");
const { load } = await import("/src/worker/load_model.js");
const python = await startPython(argument.places, Promise.resolve());
python.registerJsModule("embedllm_bridge", { load });
const isRestored = "_loadSnapshot" in python._api.config;
"""
REPLY = """
import json, sys
before = set(sys.modules)
from embedllm.sampling.options import Sampling
from embedllm.web.loading import aload
llm = await aload(tiny, device="wasm", urls=urls)
messages = [{"role": "user", "content": "hello"}]
async def reply(seed=None):
    sampling = Sampling(temperature=1.5, seed=seed)
    return (await llm.agenerate(messages, sampling, max_tokens=12, stop_tokens=[])).tokens
found = {"seeded": await reply(3), "drawn": await reply()}
llm.close()
json.dumps({**found, "later": sorted(set(sys.modules) - before)})
"""
RUN = (
    START
    + """
python.globals.set("tiny", argument.tiny);
python.globals.set("urls", python.toPy(argument.places));
return { isRestored, ...JSON.parse(await python.runPythonAsync(argument.code)) };
"""
)
FILE = """
const home = await (await navigator.storage.getDirectory()).getDirectoryHandle("embedllm", { create: true });
const folder = await home.getDirectoryHandle("python", { create: true });
const names = [];
for await (const name of folder.keys()) names.push(name);
"""
KEPT = (
    "async () => {"
    + FILE
    + """
for (let turn = 0; turn < 600; turn++) {
  const file = await folder.getFileHandle("snapshot").then((handle) => handle.getFile(), () => null);
  if (file) return file.lastModified;
  await new Promise((done) => setTimeout(done, 50));
}
throw new Error(`no snapshot after 30 s, but ${names}`); }"""
)
DAMAGE = (
    "async () => {"
    + FILE
    + """
const handle = await folder.getFileHandle("snapshot");
const writable = await handle.createWritable({ keepExistingData: true });
await writable.write({ type: "write", position: 9_000_000, data: new Uint8Array([1, 2, 3]) });
await writable.close(); }"""
)
CHANGED = (
    "async (before) => {"
    + FILE
    + """
const file = await folder.getFileHandle("snapshot").then((handle) => handle.getFile(), () => null);
return file !== null && file.lastModified > before; }"""
)
WITHOUT = {
    "storage": "Object.defineProperty(navigator, 'storage', { value: undefined });",
    "room": """
const { write } = FileSystemSyncAccessHandle.prototype;
FileSystemSyncAccessHandle.prototype.write = function (bytes, options) {
  if (bytes.length > 16_000_000) throw new DOMException("full", "QuotaExceededError");
  return write.call(this, bytes, options);
};
""",
}


@pytest.fixture
def given(
    web_server: WebServer, python_folder: Path, node_modules: Path, tmp_path: Path, tiny_package: Callable[..., Path]
) -> dict[str, Any]:
    """Where all is, the wheel in a folder of this test's."""
    if not (node_modules / "pyodide").is_dir():
        pytest.skip("Pyodide is not here; install it with: cd bindings_web && npm ci")
    python = web_server.serve("/python", shutil.copytree(python_folder, tmp_path / "python"))
    places = {
        **urls(web_server),
        "pyodide": f"{web_server.url}/node_modules/pyodide/pyodide.mjs",
        "wheel": f"{python}/embedllm.whl",
        "jinja2": f"{python}/jinja.whl",
        "markupsafe": f"{python}/jinja.whl",
    }
    return {"places": places, "tiny": web_server.serve("/models/tiny", tiny_package("llama")) + "/", "code": REPLY}


def reply(page: Page, given: dict[str, Any], before: str = "") -> dict[str, Any]:
    """What REPLY gives in a new worker, and whether Python was restored there."""
    page.end_worker()
    return page.in_worker(before + RUN, given, patience_s=LONG_S)


def test_a_reload_goes_on_from_the_snapshot_and_gives_what_a_start_gives(page: Page, given: dict[str, Any]) -> None:
    first = reply(page, given)
    assert not first["isRestored"]
    page.evaluate(KEPT)
    second, third = reply(page, given), reply(page, given)
    assert (second["isRestored"], third["isRestored"]) == (True, True)
    assert first["seeded"] == second["seeded"] == third["seeded"]
    assert second["drawn"] != third["drawn"]  # chance is not in the snapshot
    assert second["later"] == ["embedllm_bridge"]  # all else was imported before it


def test_a_damaged_snapshot_and_one_of_another_wheel_are_made_again(
    page: Page, given: dict[str, Any], tmp_path: Path
) -> None:
    first = reply(page, given)
    kept = page.evaluate(KEPT)
    page.evaluate(DAMAGE)
    again = reply(page, given)
    assert (again["isRestored"], again["seeded"]) == (False, first["seeded"])
    page.until(CHANGED, kept)
    assert reply(page, given)["isRestored"]
    with zipfile.ZipFile(tmp_path / "python" / "embedllm.whl", "a") as wheel:
        wheel.writestr("embedllm/newer.py", "")
    newer = reply(page, given)
    assert (newer["isRestored"], newer["seeded"]) == (False, first["seeded"])


@pytest.mark.parametrize("lacking", WITHOUT)
def test_a_browser_that_stores_nothing_starts_python_each_time(lacking: str, page: Page, given: dict[str, Any]) -> None:
    assert not reply(page, given, WITHOUT[lacking])["isRestored"]
    again = reply(page, given)
    assert not again["isRestored"]
    assert again["seeded"]


def test_wheels_come_from_the_distribution_of_pyodide(node_modules: Path) -> None:
    text = (ROOT / "bindings_web" / "src" / "libraries.js").read_text(encoding="utf-8")
    lock = json.loads((node_modules / "pyodide" / "pyodide-lock.json").read_text(encoding="utf-8"))
    version = json.loads((node_modules / "pyodide" / "package.json").read_text(encoding="utf-8"))["version"]
    assert f"cdn.jsdelivr.net/pyodide/v{version}/full" in text
    for name in ("jinja2", "markupsafe"):
        assert f"{name}: `${{PYODIDE}}/{lock['packages'][name]['file_name']}`" in text
