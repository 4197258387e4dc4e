"""What the probe of the software GPU found: by one page for those of all tests, as its shaders take 15 s and more.

Each test has an origin of its own, for which nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from filelock import FileLock

from tests.web.support.calls import LONG_S
from tests.web.support.page import Page

# a probe that ends too late is begun again: other processes may have had the cores
PROBE = """
const [{ devices }, { probe }] = await Promise.all([import("/src/engine/devices.js"), import("/src/engine/probe.js")]);
const software = (await devices()).find(({ name }) => name === "webgpu-software");
let outcome;
for (let count = 0; count < 3 && !outcome?.variant; count++)
  outcome = await probe(software, { base: argument.onnxruntime, url: argument.probe });
if (!outcome.variant) throw new Error(outcome.reason);
const folder = await navigator.storage.getDirectory();
return await (await (await folder.getFileHandle("embedllm-probes.json")).getFile()).text();
"""
STORE = """async (text) => {
  const folder = await navigator.storage.getDirectory();
  const writable = await (await folder.getFileHandle("embedllm-probes.json", { create: true })).createWritable();
  await writable.write(text);
  await writable.close();
}"""


def probed(page: Page, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a load is given; before one on the software GPU, the page knows that it computes rightly.

    page: at /tests/blank.html. given: "device", a name or several, and "urls", of the libraries.
    """
    if "webgpu-software" not in given["device"]:
        return given
    assert page.browser.shared is not None
    found = page.browser.shared / "probes.json"
    with FileLock(f"{found}.lock"):  # other processes wait: two probes at once take twice as long
        if not found.exists():
            found.write_text(page.in_worker(PROBE, given["urls"], worker="probe", patience_s=LONG_S))
            page.end_worker("probe")
            return given
    page.evaluate(STORE, found.read_text())
    return given
