"""What stands in place of attention, or beside it, in the OpenVINO model of a recurrent one: convolutions, states."""

from __future__ import annotations

from collections.abc import Sequence

from embedllm.export.openvino.elementwise import added, multiplied, multiplied_by, normed
from embedllm.export.openvino.gated_delta import delta_rule
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.architecture.weights import Linear
from embedllm.package.recurrent_state import LENGTH_EPSILON, variable_name
from embedllm.package.tensors import convolution_name, decay_name

_TO_END = (1 << 63) - 1


class Recurrent:
    """Writes such parts of layers. batch: [1]. beams: [B]."""

    def __init__(self, products: Products, *, batch: Value, beams: Value) -> None:
        self.ir: Ir = products.ir
        self._products, self._batch, self._beams = products, batch, beams

    def context(self, index: int, mixer: ShortConv | DeltaNet | Mamba2, x: Value) -> Value:
        """[B, T, values], in front of the output projection."""
        if isinstance(mixer, ShortConv):
            return self.short_convolution(index, mixer, x)
        if isinstance(mixer, Mamba2):
            return self.mamba2(index, mixer, x)
        return self.delta_net(index, mixer, x)

    def short_convolution(self, index: int, mixer: ShortConv, x: Value) -> Value:
        ir, parts = self.ir, [mixer.b, mixer.c, mixer.x]
        lengths = ir.constant([part.rows for part in parts])
        together = self._products.linear(x, parts, "bcx")
        b, c, values = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "bcx.split", 3)
        entering = multiplied_by(ir, [b, values], "entering")
        convolved = self.convolved(index, mixer.kernel, mixer.x.rows, entering, has_bias=bool(mixer.bias))
        return multiplied_by(ir, [c, convolved], "context")

    def delta_net(self, index: int, mixer: DeltaNet, x: Value) -> Value:
        ir, parts = self.ir, [mixer.q, mixer.k, mixer.v, mixer.z]
        heads, size = mixer.value_heads, mixer.value_dim
        entering_size = sum(part.rows for part in parts[:3])
        together = self._products.linear(x, parts, "qkvz")
        lengths = ir.constant([entering_size, mixer.z.rows])
        entering, z = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "qkvz.split", 2)
        passed = self.convolved(index, mixer.kernel, entering_size, entering, has_bias=False)
        passed = ir.op("Swish", [passed], "passed")
        lengths = ir.constant([part.rows for part in parts[:3]])
        q, k, v = ir.split("VariadicSplit", [passed, ir.constant(2), lengths], "qkv.split", 3)
        q, k = (self._keys(value, mixer, name) for value, name in ((q, "q"), (k, "k")))
        q = multiplied(ir, q, mixer.key_dim**-0.5, "q.scaled")
        v = self._by_head(v, heads, size, "v")
        ir.is_precise = True  # as choices of experts, these hang on little, and what is wrong in a state stays there
        beta = ir.op("Sigmoid", [self._small(x, mixer.beta, "beta.product")], "beta")
        beta = multiplied(ir, beta, 2.0 if mixer.allow_neg_eigval else 1.0, "beta.twice")
        beta = self._of_heads(beta, "beta.by_head")
        decay_factor = self._of_heads(self._decay_factor(index, mixer, x), "kept.by_head")
        ir.is_precise = False
        state = self.read_state(f"recurrent.{index}", [heads, mixer.key_dim, size])
        output, after = delta_rule(ir, [q, k, v, decay_factor, beta], state)
        self.keep(f"recurrent.{index}", after)
        tokens = ir.op("Transpose", [output, ir.constant([0, 2, 1, 3])], "found.tokens")
        normed_heads = normed(ir, tokens, mixer.norm, "found.norm")
        flat = ir.op("Reshape", [normed_heads, ir.constant([0, 0, heads * size])], "found.flat", special_zero=True)
        return multiplied_by(ir, [flat, ir.op("Swish", [z], "z.silu")], "context")

    def mamba2(self, index: int, mixer: Mamba2, x: Value) -> Value:
        ir, parts, heads = self.ir, [mixer.x, mixer.b, mixer.c], mixer.heads
        rows = [part.rows for part in parts]
        together = self._products.linear(x, [*parts, mixer.z], "xbcz")
        lengths = ir.constant([sum(rows), mixer.z.rows])
        entering, z = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "xbcz.split", 2)
        passed = self.convolved(index, mixer.kernel, sum(rows), entering, has_bias=bool(mixer.bias))
        passed = ir.op("Swish", [passed], "passed")
        values, b, c = ir.split("VariadicSplit", [passed, ir.constant(2), ir.constant(rows)], "xbc.split", 3)
        values = self._by_head(values, heads, mixer.head_dim, "x")
        b, c = (self._of_groups(each, mixer, name) for each, name in ((b, "b"), (c, "c")))
        ir.is_precise = True  # what is wrong in a state stays there
        bias, rate = (ir.stored([decay_name(index, part)], "f32", [heads]) for part in ("step_bias", "log_decay"))
        biased = added(ir, [self._small(x, mixer.step, "step.product"), bias], "step.biased")
        step = ir.op("SoftPlus", [biased], "step")
        decay = multiplied_by(ir, [step, ir.op("Exp", [rate], "decay.rate")], "decay.size")
        decay_factor = self._of_heads(ir.op("Exp", [multiplied(ir, decay, -1.0, "decay")], "kept"), "kept.by_head")
        ir.is_precise = False
        state = self.read_state(f"recurrent.{index}", [heads, mixer.state_dim, mixer.head_dim])
        inputs = [c, b, values, decay_factor, self._of_heads(step, "step.by_head")]
        output, after = delta_rule(ir, inputs, state, is_delta=False)
        self.keep(f"recurrent.{index}", after)
        skip = ir.stored([decay_name(index, "skip")], "f32", [heads, 1, 1])
        total = added(ir, [output, multiplied_by(ir, [values, skip], "x.skipped")], "total")
        tokens = ir.op("Transpose", [total, ir.constant([0, 2, 1, 3])], "total.tokens")
        flat = ir.op("Reshape", [tokens, ir.constant([0, 0, heads * mixer.head_dim])], "total.flat", special_zero=True)
        gated_name = "context" if mixer.norm is None else "context.gated"
        gated = multiplied_by(ir, [flat, ir.op("Swish", [z], "z.silu")], gated_name)
        if mixer.norm is None:
            return gated
        if mixer.groups == 1:
            return normed(ir, gated, mixer.norm, "context")
        shape = ir.constant([0, 0, mixer.groups, mixer.norm.size])
        by_group = ir.op("Reshape", [gated, shape], "context.groups", special_zero=True)
        apart = normed(ir, by_group, mixer.norm, "context.norm")
        flat = ir.constant([0, 0, heads * mixer.head_dim])
        return ir.op("Reshape", [apart, flat], "context", special_zero=True)

    def _decay_factor(self, index: int, mixer: DeltaNet, x: Value) -> Value:
        """The part of the state of each head that a token leaves, [B, T, heads]."""
        ir, shape = self.ir, [mixer.value_heads]
        rate, bias = (ir.stored([decay_name(index, part)], "f32", shape) for part in ("log_decay", "decay_bias"))
        biased = added(ir, [self._small(x, mixer.decay, "decay.product"), bias], "decay.biased")
        positive = ir.op("SoftPlus", [biased], "decay.positive")
        decay = multiplied_by(ir, [positive, ir.op("Exp", [rate], "decay.rate")], "decay.size")
        return ir.op("Exp", [multiplied(ir, decay, -1.0, "decay")], "kept")

    def _keys(self, x: Value, mixer: DeltaNet, name: str) -> Value:
        """[B, T, key heads * D] as [B, value heads, T, D], each of the length 1."""
        ir, heads, size = self.ir, mixer.key_heads, mixer.key_dim
        by_head = self._by_head(x, heads, size, name)
        squares = multiplied_by(ir, [by_head, by_head], f"{name}.squares")
        total = ir.op("ReduceSum", [squares, ir.constant([-1])], f"{name}.sum", keep_dims=True)
        length = ir.op("Sqrt", [added(ir, [total, ir.constant(LENGTH_EPSILON, "f32")], f"{name}.sum.epsilon")],
                       f"{name}.length")  # fmt: skip
        one = ir.op("Divide", [by_head, length], f"{name}.length_one", m_pythondiv=True, **BROADCAST)
        shared = mixer.value_heads // heads
        if shared == 1:
            return one
        owners = ir.constant([head // shared for head in range(mixer.value_heads)])
        return ir.op("Gather", [one, owners, ir.constant(1)], f"{name}.shared", batch_dims=0)

    def _of_groups(self, x: Value, mixer: Mamba2, name: str) -> Value:
        """[B, T, groups * D] as [B, heads, T, D], or [B, 1, T, D] of a single group."""
        ir = self.ir
        if mixer.groups == 1:
            return ir.op("Unsqueeze", [x, ir.constant(1)], name)
        apart = self._by_head(x, mixer.groups, mixer.state_dim, name)
        owners = ir.constant([head * mixer.groups // mixer.heads for head in range(mixer.heads)])
        return ir.op("Gather", [apart, owners, ir.constant(1)], f"{name}.shared", batch_dims=0)

    def _by_head(self, x: Value, heads: int, size: int, name: str) -> Value:
        """[B, T, heads * D] as [B, heads, T, D]."""
        ir = self.ir
        split = ir.op("Reshape", [x, ir.constant([0, 0, heads, size])], f"{name}.heads", special_zero=True)
        return ir.op("Transpose", [split, ir.constant([0, 2, 1, 3])], f"{name}.by_head")

    def _of_heads(self, x: Value, name: str) -> Value:
        """[B, T, heads] as [B, heads, T, 1]."""
        transposed = self.ir.op("Transpose", [x, self.ir.constant([0, 2, 1])], f"{name}.transposed")
        return self.ir.op("Unsqueeze", [transposed, self.ir.constant(3)], name)

    def _small(self, x: Value, matrix: Linear, name: str) -> Value:
        """x times a matrix of floats."""
        weight = self.ir.stored([f"{matrix.name}.weight"], "f32", [matrix.rows, matrix.columns])
        return self.ir.op("MatMul", [x, weight], name, transpose_a=False, transpose_b=True)

    def convolved(self, index: int, kernel: int, size: int, x: Value, *, has_bias: bool) -> Value:
        """Each of `size` values of x [B, T, size] with those of the tokens before it."""
        ir = self.ir
        past = self.read_state(f"conv.{index}", [kernel - 1, size])
        with_past = ir.op("Concat", [past, x], "conv.known", axis=1)
        self.keep(f"conv.{index}", self._tokens(with_past, 1 - kernel, _TO_END, "conv.new"))
        weight = ir.stored([convolution_name(index, "weight")], "f32", [size, kernel])
        weight = ir.op("Transpose", [weight, ir.constant([1, 0])], "conv.by_tap")
        total: Value | None = None
        for tap in range(kernel):
            tokens = self._tokens(with_past, tap, tap + 1 - kernel or _TO_END, f"conv.{tap}.seen")
            taps = ir.op("Gather", [weight, ir.constant(tap), ir.constant(0)], f"conv.{tap}.weight", batch_dims=0)
            part = multiplied_by(ir, [tokens, taps], f"conv.{tap}")
            total = part if total is None else added(ir, [total, part], f"conv.{tap}.sum")
        assert total is not None  # a kernel has a tap
        if not has_bias:
            return total
        return added(ir, [total, ir.stored([convolution_name(index, "bias")], "f32", [size])], "conv.biased")

    def read_state(self, name: str, shape: Sequence[int]) -> Value:
        """A state [B, *shape]; zeros at the beginning. name: in embedllm/package/recurrent_state.py."""
        ir, kind = self.ir, name.partition(".")[0]
        state_shape = ir.op("Concat", [self._batch, ir.constant(shape)], f"{kind}.none.shape", axis=0)
        none = ir.op("Broadcast", [ir.constant(0.0, "f32"), state_shape], f"{kind}.none", mode="numpy")
        state = ir.op("ReadValue", [none], f"{kind}.held", variable_id=variable_name(name), variable_type="f32",
                      variable_shape=",".join(["?", *map(str, shape)]))  # fmt: skip
        return ir.op("Gather", [state, self._beams, ir.constant(0)], f"{kind}.past", batch_dims=0)

    def keep(self, name: str, state: Value) -> None:
        """What the next step is to read of a state."""
        self.ir.split("Assign", [state], f"{name.partition('.')[0]}.keep", 0, variable_id=variable_name(name))

    def _tokens(self, x: Value, start: int, stop: int, name: str) -> Value:
        bounds = [self.ir.constant([value]) for value in (start, stop, 1, 1)]
        return self.ir.op("Slice", [x, *bounds], name)
