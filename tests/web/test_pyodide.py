"""The Python API in a real Chromium: Pyodide in a worker, the wheel for browsers in it, the tokens of the desktop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.loading.resolve import package_folder
from tests.web.support import cases
from tests.web.support.browser import Browser
from tests.web.support.calls import LONG_S
from tests.web.support.page import Page
from tests.web.support.server import Fault, WebServer
from tests.web.support.site import urls
from tests.web.test_python import is_same, template_engine

pytestmark = pytest.mark.browser

QUESTION = "list all files that were changed today"
STRICT = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'"
START = """
const { loadPyodide } = await import(argument.pyodide);
const python = await loadPyodide({ indexURL: new URL(".", argument.pyodide).href });
for (const url of argument.archives) python.unpackArchive(await (await fetch(url)).arrayBuffer(), "wheel");
for (const [name, value] of Object.entries(argument.names)) python.globals.set(name, python.toPy(value));
globalThis.python = python;
"""
RUN = "return JSON.parse(await python.runPythonAsync(argument));"
# a page whose policy forbids eval: its own worker script, the bridge registered, replies by message
STRICT_WORKER = """
import { load } from "/src/worker/load_model.js";
addEventListener("message", async ({ data: argument }) => {
  try {
    %s
    python.registerJsModule("embedllm_bridge", { load });
    postMessage(await python.runPythonAsync(argument.code));
  } catch (error) {
    postMessage(`${error}`);
  }
});
"""


@pytest.fixture(scope="module")
def wheels(web_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for browsers under its name, and the template engine."""
    folder = tmp_path_factory.mktemp("python")
    shutil.copy(web_wheel, folder)
    template_engine(folder / "jinja.zip")
    return folder


@pytest.fixture
def given(web_server: WebServer, wheels: Path, node_modules: Path, tiny_package: Callable[..., Path]) -> dict[str, Any]:
    """What START is given: where Pyodide and the wheels are, and the names that a program has."""
    if not (node_modules / "pyodide").is_dir():
        pytest.skip("Pyodide is not here; install it with: cd bindings_web && npm ci")
    python = web_server.serve("/python", wheels)
    names = {
        "tiny": web_server.serve("/models/tiny", tiny_package("llama")),
        "demo": web_server.serve("/models/demo", package_folder("demo")),
        "urls": urls(web_server),
        "cases": (Path(__file__).parent / "support/cases.py").read_text(encoding="utf-8"),
    }
    wheel = next(wheels.glob("*.whl")).name
    archives = [f"{python}/{wheel}", f"{python}/jinja.zip"]
    return {"pyodide": f"{web_server.url}/node_modules/pyodide/pyodide.mjs", "archives": archives, "names": names}


@pytest.fixture
def page(browser: Browser, web_server: WebServer, given: dict[str, Any]) -> Page:
    """A page whose worker has Python in it."""
    made = browser.context().page(f"{web_server.url}/tests/blank.html")
    made.in_worker(START, given, patience_s=LONG_S)
    return made


def run(page: Page, code: str) -> Any:  # noqa: ANN401  # any JSON
    """What a program of Python's gives in the end, as JSON."""
    return page.in_worker(RUN, code, patience_s=LONG_S)


def test_a_program_gives_what_it_gives_on_the_desktop(page: Page, tiny_package: Callable[..., Path]) -> None:
    """Greedy and seeded, stopped, streamed, chats, errors, cancelled: tests/web/support/cases.py."""
    found = run(
        page,
        """
        import json, embedllm
        scope = {"__name__": "cases"}
        exec(cases, scope)
        llm = await embedllm.aload(tiny, device="wasm", urls=urls)
        found = await scope["outcomes"](llm)
        llm.close()
        try:
            await llm.agenerate("x")
        except ValueError as error:
            found["closed"] = str(error)
        json.dumps(found)
        """,
    )
    assert "closed" in found.pop("closed")
    with embedllm.load(tiny_package("llama"), device="cpu", exact=True) as llm:
        expected = json.loads(json.dumps(asyncio.run(cases.outcomes(llm))))
    assert found.keys() == expected.keys()
    different = [name for name in expected if not is_same(found[name], expected[name])]
    assert {name: (found[name], expected[name]) for name in different} == {}


def test_synchronous_calls_wait_where_they_can(page: Page) -> None:
    found = run(
        page,
        """
        import json, embedllm
        told = []
        sampling = embedllm.Sampling(seed=5, temperature=0.8)
        with embedllm.load(tiny, device="wasm", urls=urls, on_progress=told.append) as llm:
            whole = llm.generate("the quick", sampling, max_tokens=20)
            pieces = [chunk.token for chunk in llm.stream("the quick", sampling, max_tokens=20)]
            with llm.conversation() as talk:
                talk.say("hello", sampling, max_tokens=5)
                second = talk.say("again", sampling, max_tokens=5)
        awaited = await (llm := await embedllm.aload(tiny, device="wasm", urls=urls)).agenerate(
            "the quick", sampling, max_tokens=20)
        json.dumps({
            "same": list(whole.tokens) == pieces == list(awaited.tokens), "count": len(pieces),
            "cached": second.statistics.cached_tokens, "phases": sorted({one.phase for one in told}),
            "devices": [[one.name, one.available] for one in embedllm.devices()], "device": llm.device.name,
            "same devices": embedllm.devices() == await embedllm.adevices(),
        })
        """,
    )
    assert (found["same"], found["count"], found["device"]) == (True, 20, "wasm")
    assert found["cached"] > 10
    assert {"download", "compile"} <= set(found["phases"])
    assert found["devices"] == [["webgpu", False], ["webgpu-software", True], ["wasm", True]]
    assert found["same devices"]
    refused = """
import embedllm
try:
    embedllm.load(tiny, urls=urls)
except ValueError as error:
    said = str(error)
said
"""
    said = page.in_worker("return python.runPython(argument);", refused)
    assert "a synchronous call cannot wait here" in said
    assert "await embedllm.aload(url)" in said


def test_errors_say_the_same_as_on_the_desktop_and_a_cancelled_load_can_be_done_again(
    page: Page, web_server: WebServer
) -> None:
    web_server.fault("/models/demo/weights.safetensors", Fault(hold_after=1_000_000))
    found = run(
        page,
        """
        import asyncio, json, embedllm
        found = {}

        async def failing(name, work):
            try:
                await work
                found[name] = ["nothing"]
            except Exception as error:
                found[name] = [type(error).__name__, str(error), getattr(error, "tried", [["", ""]])[0][0]]

        await failing("refused", embedllm.aload(tiny, device="webgpu", urls=urls))
        await failing("missing", embedllm.aload(tiny + "-not", urls=urls))
        await failing("option", embedllm.aload(tiny, exact=True))
        await failing("context", embedllm.aload(tiny, context=129, urls=urls))
        llm = await embedllm.aload(tiny, context=24, urls=urls)
        await failing("full", llm.agenerate([7] * 30))
        llm.close()
        await failing("library", embedllm.aload(tiny, urls={"none": "x"}))

        def stops(progress):
            raise OSError("enough")

        await failing("progress", embedllm.aload(tiny, urls=urls, on_progress=stops))
        came = asyncio.Event()
        load = embedllm.aload(demo, device="wasm", urls=urls, on_progress=lambda _: came.set())
        loading = asyncio.ensure_future(load)
        await came.wait()
        loading.cancel()
        try:
            await loading
        except asyncio.CancelledError:
            found["cancelled"] = True
        json.dumps(found)
        """,
    )
    kinds = {name: error[0] for name, error in found.items() if name != "cancelled"}
    assert kinds == {
        "refused": "DeviceUnavailable", "missing": "PackageError", "option": "ValueError", "library": "ValueError",
        "progress": "OSError", "context": "ValueError", "full": "ContextFull",
    }  # fmt: skip
    assert found["refused"][2] == "webgpu"
    assert "software" in found["refused"][1]
    assert "context is 129 tokens, and" in found["context"][1]
    assert "24 can be held together with the reply. Shorten the prompt, or load with a larger" in found["full"][1]
    assert found["cancelled"]
    web_server.release("/models/demo/weights.safetensors")
    text = run(
        page,
        f"""
        llm = await embedllm.aload(demo, device="wasm", urls=urls)
        reply = [chunk.text async for chunk in llm.astream([{{"role": "user", "content": "{QUESTION}"}}])]
        json.dumps("".join(reply))
        """,
    )
    with embedllm.load("demo", device="cpu") as llm:
        assert text == llm.generate([{"role": "user", "content": QUESTION}]).text


def test_memory_comes_back_when_models_are_closed(page: Page) -> None:
    """Each has 2 MB of KV and weights in JavaScript's memory; 30 that stayed would be seen."""
    held = run(
        page,
        """
        import json, embedllm, pyodide_js
        held = []
        for turn in range(12):
            llm = await embedllm.aload(tiny, device="wasm", urls=urls)
            await llm.agenerate("the quick", max_tokens=3)
            llm.close()
            held.append(pyodide_js._module.HEAP8.length)
        json.dumps(held)
        """,
    )
    assert held[-1] == held[2]


def test_a_strict_policy_lets_a_program_run(
    browser: Browser, web_server: WebServer, given: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text('<!doctype html><link rel="icon" href="/python/none"><title>strict</title>')
    (tmp_path / "worker.js").write_text(STRICT_WORKER % START)
    web_server.headers("/", {"Content-Security-Policy": STRICT})
    page = browser.context().page(web_server.serve("/strict", tmp_path) + "/")
    code = """
import embedllm
llm = await embedllm.aload(tiny, device="wasm", urls=urls)
reply = await llm.agenerate([{"role": "user", "content": "x"}], max_tokens=5, stop_tokens=[])
f"{len(reply.tokens)} tokens"
"""
    asked = """async (argument) => {
      const worker = new Worker("/strict/worker.js", { type: "module" });
      return new Promise((resolve) => {
        worker.onmessage = ({ data }) => resolve(data);
        worker.onerror = ({ message }) => resolve(`the worker failed: ${message}`);
        worker.postMessage(argument);
      });
    }"""
    assert page.evaluate(asked, {**given, "code": code}, patience_s=LONG_S) == "5 tokens"


def installable(name: str, folder: Path) -> str:
    """A wheel of what is installed here, without what is compiled; its file name."""
    found = distribution(name)
    path = folder / f"{name}-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in found.files or ():
            if file.suffix == ".py" or file.name == "METADATA":
                wheel.write(str(found.locate_file(file)), str(file))
        about = f"{name}-{found.version}.dist-info"
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path.name


def test_micropip_installs_it(browser: Browser, web_server: WebServer, given: dict[str, Any], tmp_path: Path) -> None:
    micropip = os.environ.get("EMBEDLLM_MICROPIP")
    if not micropip:
        pytest.skip("EMBEDLLM_MICROPIP does not name micropip's wheel: pip download --no-deps --python-version 3.14 "
                    "--only-binary=:all: micropip==0.11.1")  # fmt: skip
    (tmp_path / "micropip.whl").write_bytes(Path(micropip).read_bytes())
    engine = [installable(name, tmp_path) for name in ("markupsafe", "jinja2")]
    folder = web_server.serve("/wheels", tmp_path)
    packages = [*(f"{folder}/{name}" for name in engine), given["archives"][0]]
    page = browser.context().page(f"{web_server.url}/tests/blank.html")
    names = {**given["names"], "packages": packages}
    page.in_worker(START, {**given, "archives": [f"{folder}/micropip.whl"], "names": names}, patience_s=LONG_S)
    found = run(
        page,
        """
        import json, micropip
        for package in packages:
            await micropip.install(package, deps=False)  # jsonschema is of Pyodide's distribution, in the network
        import embedllm
        llm = await embedllm.aload(tiny, device="wasm", urls=urls)
        reply = await llm.agenerate([{"role": "user", "content": "x"}], max_tokens=5, stop_tokens=[])
        json.dumps([len(reply.tokens), micropip.list()["embedllm"].version])
        """,
    )
    assert found == [5, embedllm.__version__]
