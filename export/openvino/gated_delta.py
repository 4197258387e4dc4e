"""The gated delta rule, or Mamba-2's, in an OpenVINO model: a loop over tokens, with products and sums only."""

from __future__ import annotations

from collections.abc import Sequence

from embedllm.export.openvino.elementwise import added, multiplied_by
from embedllm.export.openvino.ir import Ir, Value

_BY_TOKEN = 'axis="2" start="0" end="-1" stride="1" part_size="1"'


def delta_rule(ir: Ir, inputs: Sequence[Value], state: Value, *, is_delta: bool = True) -> list[Value]:
    """What each head finds, [B, H, T, value size], and the state after the last token.

    inputs: q and k [B, H, T, key size], v [B, H, T, value size], decay_factor (of the state) and beta [B, H, T, 1].
    state: [B, H, key size, value size]. q and k may be the same for all heads, [B, 1, T, key size]. is_delta: what
    keys find already is not added once more.
    """
    body = Ir(None)
    body.is_precise = True  # what is rounded of a state stays in it
    parameters = [body.parameter(name, "f32", 4) for name in ("q", "k", "v", "kept", "beta", "state")]
    q, k, v, decay_factor, beta, entering_state = parameters
    left = multiplied_by(body, [entering_state, decay_factor], "left")
    missing = v
    if is_delta:
        memory = body.op("MatMul", [k, left], "read", transpose_a=False, transpose_b=False)
        missing = body.op("Subtract", [v, memory], "missing", auto_broadcast="numpy")
    new = multiplied_by(body, [missing, beta], "new")
    written = body.op("MatMul", [k, new], "written", transpose_a=True, transpose_b=False)
    after = added(body, [left, written], "after")
    output = body.op("MatMul", [q, after], "found", transpose_a=False, transpose_b=False)
    results = [body.result(value, name) for value, name in ((output, "found.result"), (after, "after.result"))]
    count = len(parameters)
    entering = "".join(
        f'<input external_port_id="{port}" internal_layer_id="{parameter.layer}"'
        + (f" {_BY_TOKEN}/>" if port < count - 1 else "/>")
        for port, parameter in enumerate(parameters)
    )
    leaving = (
        f'<output external_port_id="{count}" internal_layer_id="{results[0]}" {_BY_TOKEN}/>'
        f'<output external_port_id="{count + 1}" internal_layer_id="{results[1]}"/>'
    )
    inside = (
        f"<port_map>{entering}{leaving}</port_map>"
        f'<back_edges><edge from-layer="{results[1]}" to-layer="{entering_state.layer}"/></back_edges>'
        f"<body>{''.join(body.parts())}</body>"
    )
    return ir.split("TensorIterator", [*inputs, state], "delta_rule", 2, inside=inside)
