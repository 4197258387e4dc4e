"""What a browser makes of matrices that were carried over: the floats of the reference, and its logits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedllm.export import convert, open_source
from embedllm.package.packing import Packed, Packing, dequantize
from tests.export.checkpoints.test_passthrough import HeldSource, some_packed
from tests.support.held import PACKINGS, rounded
from tests.support.tiny import tiny_checkpoint
from tests.web.support.page import Page
from tests.web.support.server import ROOT, WebServer
from tests.web.support.software_gpu import SOFTWARE
from tests.web.test_engine import ATOL, greedy, opened, reference, some_tokens

UNPACK = """
    import {text} from "node:stream/consumers";
    const {unpackGroups} = await import(process.argv[1]);
    const found = JSON.parse(await text(process.stdin)).map((packed) => {
      for (const part of ["bytes", "zeros"]) packed[part] &&= Uint8Array.from(packed[part]);
      for (const part of ["scales", "minimums"]) packed[part] &&= Float32Array.from(packed[part]);
      const into = new Float32Array(packed.rows * packed.columns);
      unpackGroups(packed, into);
      return [...into];
    });
    console.log(JSON.stringify(found));
"""
WAYS = {**PACKINGS, "4 bits": Packing(bits=4), "8 bits, zero points": Packing(bits=8, symmetric=False)}


def run(node: str, script: str, given: object) -> list[Any]:
    """What a script prints that has the module as its argument."""
    command = [
        node,
        "--input-type=module",
        "-e",
        script,
        (ROOT / "bindings_web" / "src" / "engine" / "float_bytes.js").as_uri(),
    ]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("columns", [128, 80])  # 80: no multiple of 32, an odd number of groups
def test_a_browser_makes_the_floats_of_the_reference(columns: int, node: str) -> None:
    rows, random = 7, np.random.default_rng(3)
    packed = {name: some_packed(random, packing, rows, columns) for name, packing in WAYS.items()}
    given = [
        {
            "rows": rows, "columns": columns, "bits": WAYS[name].bits, "group_size": WAYS[name].group_size,
            "bytes": one.weight.reshape(-1).tolist(),
            "scales": one.scale.astype(float).reshape(-1).tolist(),
            "zeros": None if one.zero is None else one.zero.reshape(-1).tolist(),
            "minimums": None if one.minimum is None else one.minimum.astype(float).reshape(-1).tolist(),
        }
        for name, one in packed.items()
    ]  # fmt: skip
    for name, found in zip(packed, run(node, UNPACK, given), strict=True):
        expected = dequantize(packed[name], WAYS[name], columns)
        np.testing.assert_array_equal(np.array(found, np.float32).reshape(rows, columns), expected, err_msg=name)


ORDER = """
    import {text} from "node:stream/consumers";
    const {putInOrder} = await import(process.argv[1]);
    const {matrix, order} = JSON.parse(await text(process.stdin));
    const floats = Float32Array.from(matrix);
    putInOrder(floats, Int32Array.from(order));
    console.log(JSON.stringify([...floats]));
"""


def test_a_browser_puts_columns_where_they_belong(node: str) -> None:
    random = np.random.default_rng(5)
    expected, order = random.standard_normal((3, 41), np.float32), random.permutation(41)
    given = {"matrix": expected[:, order].reshape(-1).tolist(), "order": order.tolist()}
    np.testing.assert_array_equal(np.array(run(node, ORDER, given), np.float32).reshape(3, 41), expected)


class OrderedSource(HeldSource):
    """And the columns of some matrices in another order, queries' and keys' in the same one."""

    def order(self, name: str) -> np.ndarray | None:
        seeds = {"q_proj": 1, "k_proj": 1, "gate_proj": 2, "down_proj": 3}
        seed, columns = seeds.get(name.split(".")[-2]), self.rows(name, 0, 1).shape[1]
        return None if seed is None else np.random.default_rng(seed).permutation(columns).astype(np.int32)

    def packed(self, name: str, start: int, stop: int) -> Packed:
        packing, order, rows = self.packing(name), self.order(name), self.rows(name, start, stop)
        assert packing is not None
        return rounded(rows if order is None else rows.take(order, axis=1), packing)


@pytest.mark.parametrize("device", ["wasm", SOFTWARE])
def test_a_browser_gives_the_tokens_of_the_reference(
    device: str, page: Page, web_server: WebServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(open_source, "HuggingFaceSource", OrderedSource)
    folder = convert(tiny_checkpoint(tmp_path / "checkpoint", "llama"), tmp_path / "package")
    tokens, steps = some_tokens(20, 307), 8
    assert opened(page, web_server, folder, device)["device"] == device
    found, logits = greedy(page, tokens, steps)
    expected, first = reference(folder, tokens, steps)
    np.testing.assert_allclose(logits, first, atol=ATOL, rtol=0)
    assert found == expected
