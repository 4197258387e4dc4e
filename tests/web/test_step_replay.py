"""What a captured step is recorded as, on programs of a few lines: which sizes are known, and what is not recorded."""

from __future__ import annotations

import pytest

from tests.web.support.page import Page
from tests.web.support.server import WebServer
from tests.web.support.site import urls
from tests.web.test_engine import COUNT_INDIRECT

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.software_gpu]

# a step of four dispatches: two workgroups, a size that is written, as many as that, and another size behind them
PROGRAM = (
    COUNT_INDIRECT
    + """
const [{ StepReplay }, { loadGpuRuntime }] = await Promise.all([import("/src/engine/step_replay.js"),
  import("/src/engine/ort_runtime.js")]);
const device = await (await loadGpuRuntime(argument.base)).ort.env.webgpu.device;
const [count, sizes, staging] = [[4, 128 | 4], [12, 128 | 4 | 8 | 256], [4, 1 | 8]].map(([size, usage]) =>
  device.createBuffer({ size, usage })); // STORAGE, COPY_SRC; COPY_DST, INDIRECT; MAP_READ
const kernel = (code, buffer) => {
  const module = device.createShaderModule({ code });
  const pipeline = device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
  const layout = pipeline.getBindGroupLayout(0);
  return { pipeline, group: device.createBindGroup({ layout, entries: [{ binding: 0, resource: { buffer } }] }) };
};
const counting = kernel(`@group(0) @binding(0) var<storage, read_write> count: atomic<u32>;
  @compute @workgroup_size(1) fn main() { atomicAdd(&count, 1u); }`, count);
const writing = (x) => kernel(`@group(0) @binding(0) var<storage, read_write> sizes: array<u32>;
  @compute @workgroup_size(1) fn main() { sizes[0] = ${x}u; sizes[1] = 2u; sizes[2] = 1u; }`, sizes);
const [before, behind] = [writing(4), writing(7)];
const step = async (besides) => {
  const commands = device.createCommandEncoder();
  const pass = commands.beginComputePass();
  const put = ({ pipeline, group }) => (pass.setPipeline(pipeline), pass.setBindGroup(0, group), pass);
  put(counting).dispatchWorkgroups(2);
  put(before).dispatchWorkgroups(1);
  put(counting).dispatchWorkgroupsIndirect(sizes, 0);
  put(behind).dispatchWorkgroups(1);
  pass.end();
  besides?.(commands);
  device.queue.submit([commands.finish()]);
};
const counted = async () => {
  const commands = device.createCommandEncoder();
  commands.copyBufferToBuffer(count, 0, staging, 0, 4);
  device.queue.submit([commands.finish()]);
  await staging.mapAsync(1);
  const [found] = new Uint32Array(staging.getMappedRange().slice(0));
  staging.unmap();
  return found;
};
const ran = async (capacity) => {
  const replay = await StepReplay.of(device, step, capacity);
  const start = await counted();
  globalThis.indirect = 0;
  const commands = device.createCommandEncoder();
  replay.encode(commands);
  device.queue.submit([commands.finish()]);
  return { workgroups: (await counted()) - start, indirect };
};
const other = device.createBuffer({ size: 16, usage: 8 });
const none = async (besides) => (await StepReplay.of(device, () => step(besides), 256)) === null;
return {
  whole: await ran(256),
  part: await ran(257),
  copies: await none((commands) => commands.copyBufferToBuffer(sizes, 0, other, 0, 4)),
  writes: await none(() => device.queue.writeBuffer(other, 0, new Uint8Array(4))),
  nothing: (await StepReplay.of(device, async () => {}, 256)) === null,
  late: (await StepReplay.of(device, async () => (await step(), await step()), 256)) === null,
  isPut: [device, device.queue].some((object) => Object.keys(object).length > 0),
};
"""
)


def test_sizes_are_read_once_and_other_commands_are_not_recorded(page: Page, web_server: WebServer) -> None:
    found = page.in_worker(PROGRAM, {"base": urls(web_server)["onnxruntime"]})
    assert found["whole"] == {"workgroups": 2 + 4 * 2, "indirect": 0}
    assert found["part"] == {"workgroups": 2 + 4 * 2, "indirect": 1}  # 4 workgroups are those of 256 tokens, not of 257
    assert found["copies"]
    assert found["writes"]
    assert found["nothing"]
    assert found["late"]  # what comes after the first wait may be of somebody else
    assert not found["isPut"]  # the device's methods are its own again
