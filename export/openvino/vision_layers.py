"""The layers of a vision encoder of images of any size in an OpenVINO model, and what makes features of its patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embedllm.export.openvino.elementwise import activated, added, multiplied, multiplied_by, normed
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.mlp import mlp
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.recurrent import ShortConv
from embedllm.package.architecture.vision import DynamicVision, PatchMerger, PatchPooler
from embedllm.package.architecture.weights import Norm
from embedllm.package.tensors import POOLED

# what the queries of a layer find, [1, heads, patches, D]: of its number, its attention, and q, k and v of that shape
Attend = Callable[[int, Attention, tuple[Value, Value, Value]], Value]
# what a layer that has a convolution makes of patches [1, patches, hidden], in front of its output projection
Convolve = Callable[[int, ShortConv, Value], Value]


def attend_to_all(ir: Ir, attention: Attention, qkv: tuple[Value, Value, Value]) -> Value:
    """What the queries of a layer find whose patches all see each other."""
    q, k, v = qkv
    if attention.scale is not None:  # the operator divides by the root of the size of a head
        q = multiplied(ir, q, attention.scale * attention.head_dim**0.5, "q.scaled")
    return ir.op("ScaledDotProductAttention", [q, k, v], "attention", causal=False)


class EncoderLayers:
    """Writes all behind the embedding of patches.

    rotations: cos and sin of the patches, none without RoPE. convolve: of encoders with convolutions.
    """

    def __init__(
        self,
        vision: DynamicVision,
        products: Products,
        rotations: Sequence[Value],
        attend: Attend,
        convolve: Convolve | None = None,
    ) -> None:
        self.vision, self.products, self.ir = vision, products, products.ir
        self.rotations, self.attend, self.convolve = rotations, attend, convolve

    def features(self, x: Value, tensor: str = "") -> tuple[Value, list[Value]]:
        """The rows of features [1, rows, the decoder's hidden] of the patches x, and those of DeepStack.

        tensor: a name for the rows, where there is no DeepStack.
        """
        ir, vision = self.ir, self.vision
        features: dict[int, Value] = {}  # of DeepStack, by their place
        for index, layer in enumerate(vision.layers):
            ir.scope = f"vision.layers.{index}"
            x = self.layer(index, layer, x)
            for place, deepstack in enumerate(vision.deepstack):
                if deepstack.layer == index:
                    ir.scope = f"vision.deepstack.{place}"
                    features[place] = self.merged(deepstack.merger, x, "")
        ir.scope = "vision.merger"
        name = "" if features else tensor
        if isinstance(vision.merger, PatchPooler):
            output = self.pooled(vision.merger, x, name)
        else:
            output = self.merged(vision.merger, x, name)
        return output, [features[place] for place in sorted(features)]

    def layer(self, index: int, layer: Layer, x: Value) -> Value:
        """The stream behind a layer."""
        ir, mixer = self.ir, layer.attention
        assert isinstance(mixer, Attention | ShortConv)
        assert isinstance(layer.mlp, Mlp)
        patches = normed(ir, x, layer.attention_norm, "norm")
        if isinstance(mixer, ShortConv):
            assert self.convolve is not None
            context = self.convolve(index, mixer, patches)
        else:
            context = self.context(index, mixer, patches)
        output = self.products.linear(context, [mixer.o], "o")
        x = added(ir, [x, normed(ir, output, layer.attention_post_norm, "post_norm")], "attention.sum")
        output = mlp(self.products, layer.mlp, normed(ir, x, layer.mlp_norm, "mlp.norm"))
        output = normed(ir, output, layer.mlp_post_norm, "mlp.post_norm")
        return added(ir, [x, output], "mlp.sum")

    def context(self, index: int, attention: Attention, patches: Value) -> Value:
        """What the patches find, [1, patches, heads * D]."""
        ir, parts = self.ir, [attention.q, attention.k, attention.v]
        lengths = ir.constant([part.rows for part in parts])
        together = self.products.linear(patches, parts, "qkv")
        split = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "qkv.split", 3)
        norms = (attention.q_norm, attention.k_norm, attention.v_norm)
        counts = (attention.heads, attention.kv_heads, attention.kv_heads)
        each = zip(split, counts, norms, "qkv", strict=True)
        q, k, v = (self.by_head(x, heads, attention.head_dim, norm, name) for x, heads, norm, name in each)
        if self.vision.has_rope:
            q, k = self.rotated(q, attention, "q"), self.rotated(k, attention, "k")
        if attention.heads > attention.kv_heads:
            k, v = (self.shared(x, attention, name) for x, name in ((k, "k"), (v, "v")))
        output = self.attend(index, attention, (q, k, v))
        merged = ir.op("Transpose", [output, ir.constant([0, 2, 1, 3])], "attention.tokens")
        return ir.op("Reshape", [merged, ir.constant([0, 0, attention.o.columns])], "context", special_zero=True)

    def by_head(self, x: Value, count: int, head_dim: int, norm: Norm | None, name: str) -> Value:
        """[1, patches, heads * D] as [1, heads, patches, D], each head normed. count: of heads."""
        ir, shape = self.ir, self.ir.constant([0, 0, count, head_dim])
        heads = ir.op("Reshape", [x, shape], f"{name}.heads", special_zero=True)
        heads = normed(ir, heads, norm, f"{name}.norm")
        return ir.op("Transpose", [heads, ir.constant([0, 2, 1, 3])], f"{name}.by_head")

    def shared(self, x: Value, attention: Attention, name: str) -> Value:
        """Keys or values [1, kv heads, patches, D] as one for each head of the queries."""
        by = attention.heads // attention.kv_heads
        heads = self.ir.constant([head // by for head in range(attention.heads)])
        return self.ir.op("Gather", [x, heads, self.ir.constant(1)], f"{name}.shared", batch_dims=0)

    def rotated(self, x: Value, attention: Attention, name: str) -> Value:
        """x * cos + (-second half, first half) * sin."""
        ir, half, (cos, sin) = self.ir, attention.head_dim // 2, self.rotations
        first, second = ir.split("VariadicSplit", [x, ir.constant(3), ir.constant([half, half])], f"{name}.halves", 2)
        crossed = ir.op("Concat", [multiplied(ir, second, -1.0, f"{name}.minus"), first], f"{name}.crossed", axis=-1)
        parts = [multiplied_by(ir, [x, cos], f"{name}.cos"), multiplied_by(ir, [crossed, sin], f"{name}.sin")]
        return added(ir, parts, f"{name}.rotated")

    def pooled(self, pooler: PatchPooler, x: Value, tensor: str) -> Value:
        """The rows [1, rows, the decoder's hidden] of squares of patches. tensor: a name for them."""
        ir, vision = self.ir, self.vision
        shape = ir.constant([-1, vision.merge_size**2, vision.hidden])
        squares = ir.op("Reshape", [x, shape], "squares", special_zero=False)
        means = ir.op("ReduceMean", [squares, ir.constant([1])], "means", keep_dims=False)
        rows = ir.op("Unsqueeze", [means, ir.constant([0])], "means.rows")
        rows = multiplied(ir, rows, pooler.multiplier, "multiplied")
        if pooler.standardize:
            bias, scale = (
                ir.stored([f"{POOLED}.{part}"], "f32", [vision.hidden]) for part in ("std_bias", "std_scale")
            )
            rows = multiplied_by(ir, [ir.op("Subtract", [rows, bias], "centred", **BROADCAST), scale], "standardized")
        normed_rows = normed(ir, rows, pooler.norm, "norm")
        return self.products.linear(normed_rows, [pooler.projector], "projector", tensor=tensor)

    def merged(self, merger: PatchMerger, x: Value, tensor: str) -> Value:
        """The rows [1, rows, the decoder's hidden] of squares of patches. tensor: a name for them."""
        ir, norm = self.ir, merger.norm
        shape = ir.constant([0, -1, merger.square])
        if norm.size == merger.square:
            square = normed(ir, ir.op("Reshape", [x, shape], "squares", special_zero=True), norm, "norm")
        else:
            patches = normed(ir, x, norm, "norm")
            if merger.projector_norm is not None:
                patches = normed(ir, patches, merger.projector_norm, "projector_norm")
            square = ir.op("Reshape", [patches, shape], "squares", special_zero=True)
        if merger.square_norm is not None:
            square = normed(ir, square, merger.square_norm, "square_norm")
        if merger.merging is not None:
            square = self.products.linear(self.by_channel(merger, square), [merger.merging], "merging")
        up = self.products.linear(square, [merger.up], "up")
        active = activated(ir, up if merger.up_norm is None else normed(ir, up, merger.up_norm, "up_norm"), "gelu")
        if merger.gate is not None and merger.gated_up is not None:
            gate = activated(ir, self.products.linear(active, [merger.gate], "gate"), "silu")
            active = multiplied_by(ir, [gate, self.products.linear(active, [merger.gated_up], "gated_up")], "gated")
        return self.products.linear(active, [merger.down], "down", tensor=tensor)

    def by_channel(self, merger: PatchMerger, square: Value) -> Value:
        """Values of a square's patches side by side, channel by channel."""
        ir, patches = self.ir, self.vision.merge_size**2
        parts = ir.constant([0, -1, patches, merger.square // patches])
        apart = ir.op("Reshape", [square, parts], "apart", special_zero=True)
        channels = ir.op("Transpose", [apart, ir.constant([0, 1, 3, 2])], "channels")
        return ir.op("Reshape", [channels, ir.constant([0, -1, merger.square])], "channels.flat", special_zero=True)
