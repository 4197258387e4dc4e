"""Whether matrices of 2 bits, four values a byte, are computed with rightly by both runtimes, and how fast.

    python tests/benchmarks/bench_two_bits.py [--size 512]

The same bytes go into ONNX Runtime's MatMulNBits, with and without its session option mlas.use_lut_gemm, and, as u2,
into OpenVINO's matrix product; ONNX Runtime's GatherBlockQuantized looks rows up in them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnxruntime as ort
import openvino as ov
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as op

Product: TypeAlias = "Callable[[np.ndarray], np.ndarray]"

_ROUNDS = 20
_ROWS = (1, 7)  # of x


@dataclass(frozen=True)
class Matrix:
    """integers, [N, G, group]: 0 to 3. scale, zero: [N, G, 1]."""

    integers: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    @property
    def floats(self) -> np.ndarray:
        steps = self.integers.astype(np.float32) - self.zero
        return (steps * self.scale.astype(np.float32)).reshape(len(steps), -1)


def random_matrix(size: int, group: int, *, symmetric: bool) -> Matrix:
    random = np.random.default_rng(0)
    shape = size, size // group, group
    zero = np.full((*shape[:2], 1), 2) if symmetric else random.integers(0, 4, (*shape[:2], 1))
    scale = (random.random((*shape[:2], 1)) / 10 + 0.01).astype(np.float16)
    return Matrix(random.integers(0, 4, shape).astype(np.uint8), scale, zero.astype(np.uint8))


def packed(values: np.ndarray) -> np.ndarray:
    """Four values a byte along the last axis, earlier ones in the lower bits."""
    four = values.reshape(*values.shape[:-1], -1, 4)
    return (four[..., 0] | four[..., 1] << 2 | four[..., 2] << 4 | four[..., 3] << 6).astype(np.uint8)


def onnx_session(
    operator: str, names: list[str], constants: dict[str, np.ndarray], *, lut: bool = False, **attributes: int
) -> ort.InferenceSession:
    """A session of one node. names: its inputs, of which all but one are constants."""
    node = helper.make_node(operator, names, ["y"], domain="com.microsoft")
    node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
    (given,) = set(names) - set(constants)
    kind = TensorProto.FLOAT if given == "x" else TensorProto.INT64
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(given, kind, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    options = ort.SessionOptions()
    options.add_session_config_entry("mlas.use_lut_gemm", str(int(lut)))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def onnx_product(matrix: Matrix, *, lut: bool, level: int, symmetric: bool) -> Product:
    rows, groups, group = matrix.integers.shape
    constants = {"b": packed(matrix.integers), "s": matrix.scale[..., 0].astype(np.float32)}
    constants |= {} if symmetric else {"z": packed(matrix.zero[..., 0])}
    session = onnx_session("MatMulNBits", ["x", *constants], constants, lut=lut,
                           K=groups * group, N=rows, bits=2, block_size=group, accuracy_level=level)  # fmt: skip
    return lambda x: np.asarray(session.run(None, {"x": x})[0])


def openvino_product(matrix: Matrix, *, symmetric: bool, rounds: bool) -> Product:
    """rounds: activations to 8 bits, in groups of 32."""
    rows, groups, group = matrix.integers.shape
    held = packed(matrix.integers).reshape(-1), packed(matrix.zero.reshape(1, -1)).reshape(-1)  # constants share them
    weight = op.constant(ov.Tensor(held[0], ov.Shape([rows, groups, group]), ov.Type.u2))
    zero = op.constant(ov.Tensor(held[1], ov.Shape([rows, groups, 1]), ov.Type.u2))
    zero = op.constant(2, ov.Type.u2) if symmetric else zero
    steps = op.subtract(op.convert(weight, "f16"), op.convert(zero, "f16"))
    floats = op.reshape(op.multiply(steps, op.constant(matrix.scale)), np.array([rows, groups * group]), False)
    x = op.parameter([-1, groups * group], np.float32)
    model = ov.Model(op.matmul(x, op.convert(floats, "f32"), False, True), [x], "product")  # pyright: ignore[reportGeneralTypeIssues]  # their stubs
    settings = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32 if rounds else 0}
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    return lambda x: next(iter(request.infer([x]).values())) if held else x


def report(name: str, matrix: Matrix, product: Product) -> None:
    """Prints the largest difference, of the largest value, and the best time."""
    said: list[str] = []
    for rows in _ROWS:
        x = np.random.default_rng(1).standard_normal((rows, matrix.floats.shape[1])).astype(np.float32)
        expected = x @ matrix.floats.T
        gap = np.abs(product(x) - expected).max() / np.abs(expected).max()
        times: list[float] = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            product(x)
            times.append(time.perf_counter() - start)
        said.append(f"{rows} rows: off by {gap:.1e}, {1e3 * min(times):.3f} ms")
    print(f"{name}: {'; '.join(said)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="rows and columns of the matrix")
    size = parser.parse_args().size
    print(f"ONNX Runtime {ort.__version__}, OpenVINO {ov.__version__}, {size} x {size}")
    for symmetric, group in ((True, 16), (True, 32), (True, 128), (False, 32)):
        matrix = random_matrix(size, group, symmetric=symmetric)
        kind = f"groups of {group}{'' if symmetric else ', zero points'}"
        for lut, level in ((False, 0), (True, 0), (False, 4), (True, 4)):
            product = onnx_product(matrix, lut=lut, level=level, symmetric=symmetric)
            report(f"{kind}, MatMulNBits, use_lut_gemm={int(lut)}, accuracy_level={level}", matrix, product)
        for rounds in (False, True):
            product = openvino_product(matrix, symmetric=symmetric, rounds=rounds)
            report(f"{kind}, u2, rounds={int(rounds)}", matrix, product)
        table = {"b": packed(matrix.integers).reshape(size, -1), "s": matrix.scale[..., 0].astype(np.float32)}
        table |= {} if symmetric else {"z": packed(matrix.zero[..., 0])}
        first, *rest = table
        looked_up = onnx_session("GatherBlockQuantized", [first, "i", *rest], table,
                                 bits=2, block_size=group, gather_axis=0, quantize_axis=1)  # fmt: skip
        found = np.asarray(looked_up.run(None, {"i": np.arange(size)})[0])
        print(f"{kind}, GatherBlockQuantized: off by {np.abs(found - matrix.floats).max():.1e}")


if __name__ == "__main__":
    main()
