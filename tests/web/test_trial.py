"""The trial of "auto": GPU against CPU after a reply, and what later loads make of it. Software plays a slow GPU.

Software is no device of "auto". Here its adapter says that it is hardware, as some slow ones rightly do.
"""

from __future__ import annotations

import pytest

from tests.web.support.calls import LONG_S
from tests.web.support.page import Page
from tests.web.support.server import WebServer
from tests.web.support.site import urls
from tests.web.test_engine import MakePackage

pytestmark = pytest.mark.browser

HARDWARE = 'Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { get: () => false });'
ORDER = """
const [{ candidates }, { devices }, { load }, { orderByTrials, rememberTrial }] = await Promise.all([
  import("/src/engine/device_selection.js"), import("/src/engine/devices.js"), import("/src/worker/load_model.js"),
  import("/src/engine/trials.js")]);
const { sha256 } = (await (await fetch(`${argument.url}embedllm.json`)).json()).files["weights.safetensors"];
const model = { weights: sha256, floatBytes: 5e9, threads: 0 };
const order = async (given = {}) => {
  const found = await orderByTrials(candidates(await devices(), "auto"), { ...model, ...given });
  return { ...found, order: found.order.map(({ name }) => name) };
};
const loaded = async (device) => {
  const { engine, refused, untried } = await load(argument.url, { device, urls: argument.urls });
  engine.close();
  return { device: engine.device.name, refused, untried };
};
const before = await order();
await rememberTrial({ ...before.untried, times: { webgpu: 2, wasm: 1 } });
const after = { order: await order(), load: await loaded("auto") };
Object.defineProperty(WorkerNavigator.prototype, "deviceMemory", { get: () => 1e-4, configurable: true });
const little = await loaded("auto");
await rememberTrial({ ...before.untried, weights: "other", times: { webgpu: 2, wasm: null } });
const two = [await order(), await order({ weights: "other" })];
const elsewhere = await order({ threads: 3 });
await rememberTrial({ ...elsewhere.untried, times: { webgpu: 2, wasm: 1.9 } });
return { before, after, little, two, elsewhere, close: await order({ threads: 3 }), again: await order() };
"""
LOAD = """
const { EmbedLLM } = await import("/src/index.js");
globalThis.workers ??= [];
const worker = () => {
  const source = `import "${location.origin}/src/worker.js"; ${argument.hardware}`;
  workers.push(new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })), { type: "module" }));
  if (workers.length === 2) globalThis.meanwhile = ask(); // the CPU's, of the first trial
  return workers.at(-1);
};
const four = { temperature: 0, stop_tokens: [], max_tokens: 4 };
globalThis.ask = async () => (await llm.generate("the quick", four)).tokens.length;
globalThis.llm?.close();
const { url, urls, device } = argument;
globalThis.llm = await EmbedLLM.load(url, { engine: "javascript", urls, worker, device });
return { device: llm.device.name, refused: llm.refused };
"""
TIMES = """async () => {
  for (;;) {
    try {
      const folder = await navigator.storage.getDirectory();
      const found = await (await (await folder.getFileHandle("embedllm-trials.json")).getFile()).text();
      return Object.values(JSON.parse(found).times)[0];
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 100)); // not yet
    }
  }
}"""


def test_auto_goes_by_a_trial_of_this_model_in_this_browser(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    url = web_server.serve("/models/tiny", tiny_package("llama")) + "/"
    found = page.in_worker(HARDWARE + ORDER, {"url": url, "urls": urls(web_server)}, patience_s=LONG_S)
    assert found["before"]["order"] == ["webgpu", "wasm"]
    assert found["before"]["untried"]["leastStep_s"] == pytest.approx(0.1)  # 5 GB
    assert found["after"]["order"]["order"] == ["wasm", "webgpu"]
    assert found["after"]["order"]["untried"] is None
    assert found["after"]["load"]["device"] == "wasm"
    [refused] = found["after"]["load"]["refused"]
    assert refused["name"] == "webgpu"
    assert "a reply took 2.00 s, and 1.00 s on 'wasm'" in refused["reason"]
    assert found["little"] == {"device": "webgpu", "refused": [], "untried": None}  # 6 kB for a second copy
    assert [one["order"][0] for one in found["two"]] == ["wasm", "webgpu"]  # one model says nothing of another
    assert found["two"][1]["untried"] is None
    assert found["elsewhere"]["order"] == ["webgpu", "wasm"]  # other threads: it is tried again
    assert found["elsewhere"]["untried"] is not None
    assert found["close"]["order"] == ["webgpu", "wasm"]
    assert found["close"]["untried"] is None
    assert found["again"]["untried"] is not None  # the times of before are gone


@pytest.mark.slow  # software compiles and computes for seconds
def test_a_slow_gpu_loses_its_trial_which_a_request_puts_off(
    page: Page, web_server: WebServer, tiny_package: MakePackage, node_modules: object
) -> None:
    url = web_server.serve("/models/tiny", tiny_package("llama")) + "/"
    places = urls(web_server)

    def load(device: str) -> dict[str, object]:
        return run(LOAD, {"url": url, "urls": places, "hardware": HARDWARE, "device": device})

    def run(code: str, argument: object = None) -> dict[str, object]:
        return page.evaluate(f"async (argument) => {{ {code} }}", argument, patience_s=LONG_S)

    assert load("auto") == {"device": "webgpu", "refused": []}
    assert page.evaluate("ask", patience_s=LONG_S) == 4
    times = page.evaluate(TIMES, patience_s=LONG_S)
    assert page.evaluate("async () => [await meanwhile, workers.length]") == [4, 3]  # it was tried once more
    assert 0 < times["wasm"] < times["webgpu"]
    second = load("auto")
    assert second["device"] == "wasm"
    assert load("webgpu") == {"device": "webgpu", "refused": []}
