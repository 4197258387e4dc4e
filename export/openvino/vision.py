"""A vision encoder and its projector -> an OpenVINO model whose weights lie in weights.safetensors.

Input and output are those of export/onnx/vision.py. Of images of any size: dynamic_vision.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.layout import VISION_CONSTANTS, Layout
from embedllm.export.openvino import dynamic_vision
from embedllm.export.openvino.elementwise import activated, added, multiplied_by, normed
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.mlp import mlp
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.vision import DynamicVision, Vision
from embedllm.package.packing import Packing
from embedllm.package.tensors import CLASS_TOKEN, PATCHES, layer_scales

FILE = "openvino_vision_embeddings_model.xml"  # optimum-intel's name
ANY_SIZE_FILE = "openvino_vision.xml"  # of that name optimum-intel has another model: export/openvino/patch_models.py


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing]) -> bytes:
    """The model of a decoder's vision encoder, as the text of an IR file. packing: by the name of the matrix."""
    return _written(Ir(layout, VISION_CONSTANTS), decoder, packing).xml(f"{decoder.model_type}.vision").encode()


def constants(decoder: Decoder, packing: Mapping[str, Packing]) -> bytes:
    """The small constants that the model needs, to be stored as one entry of the weights file."""
    return _written(Ir(None, VISION_CONSTANTS), decoder, packing).pool


def _written(ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> Ir:
    vision = decoder.vision
    assert vision is not None
    products = Products(ir, packing)
    if isinstance(vision, DynamicVision):
        dynamic_vision.write(vision, products)
        return ir
    x = _embedded(ir, vision)
    for index, layer in enumerate(vision.layers):
        ir.scope = f"vision.layers.{index}"
        x = _layer(products, index, layer, x)
    ir.scope = "vision"
    x = normed(ir, _without_class_token(ir, vision, x), vision.norm, "norm")
    x = _shuffled(ir, vision, _pooled(ir, vision, x))
    x = normed(ir, x, vision.projector_norm, "projector_norm")
    if vision.projector_up is not None:
        x = activated(ir, products.linear(x, [vision.projector_up], "projector_up"), "gelu")
    features = products.linear(x, [vision.projector], "projector", tensor="image_features")
    ir.split("Result", [features], "image_features.result", 0)
    return ir


def _embedded(ir: Ir, vision: Vision) -> Value:
    """Patches with their positions, [tiles, patches, hidden]."""
    side, hidden = vision.patch_size, vision.hidden
    pixels = ir.parameter("pixel_values", "f32", 4)
    ir.scope = "vision"
    kernel = ir.stored([f"{PATCHES}.weight"], "f32", [hidden, 3, side, side])
    grid = ir.op("Convolution", [pixels, kernel], "grid", strides=f"{side}, {side}", pads_begin="0, 0",
                 pads_end="0, 0", dilations="1, 1", auto_pad="explicit")  # fmt: skip
    flat = ir.op("Reshape", [grid, ir.constant([0, hidden, -1])], "grid.flat", special_zero=True)
    rows = ir.op("Transpose", [flat, ir.constant([0, 2, 1])], "patches")
    rows = ir.op("Add", [rows, ir.stored([f"{PATCHES}.bias"], "f32", [hidden])], "patches.biased", **BROADCAST)
    positions = ir.stored([f"{vision.positions.name}.weight"], "f32", [vision.positions.rows, hidden])
    if vision.class_token:  # what is padded with zeros has as many rows as there are positions
        token = ir.stored([CLASS_TOKEN], "f32", [1, hidden])
        rows_behind = ir.constant([vision.positions.rows - 1, 0])
        token = ir.op("Pad", [token, ir.constant([0, 0]), rows_behind], "class_token.padded", pad_mode="constant")
        positions = added(ir, [positions, token], "positions")
        in_front, behind = ir.constant([0, 1, 0]), ir.constant([0, 0, 0])
        rows = ir.op("Pad", [rows, in_front, behind], "patches.padded", pad_mode="constant")
    return ir.op("Add", [rows, positions], "placed", **BROADCAST)


def _without_class_token(ir: Ir, vision: Vision, x: Value) -> Value:
    bounds = [ir.constant([at]) for at in (1, vision.positions.rows, 1, 1)]  # start, stop, step, axis
    return ir.op("Slice", [x, *bounds], "patches.behind") if vision.class_token else x


def _layer(products: Products, index: int, layer: Layer, x: Value) -> Value:
    """The stream behind a layer."""
    ir, attention = products.ir, layer.attention
    assert isinstance(attention, Attention)
    assert isinstance(layer.mlp, Mlp)
    context = _context(products, attention, normed(ir, x, layer.attention_norm, "norm"))
    output = products.linear(context, [attention.o], "o")
    (attention_scale, mlp_scale), hidden = layer_scales(index, layer), attention.o.rows
    x = added(ir, [x, _scaled(ir, output, attention_scale, hidden)], "attention.sum")
    output = mlp(products, layer.mlp, normed(ir, x, layer.mlp_norm, "mlp.norm"))
    return added(ir, [x, _scaled(ir, output, mlp_scale, hidden)], "mlp.sum")


def _scaled(ir: Ir, x: Value, scale: str, hidden: int) -> Value:
    """What a part of a layer adds. scale: the stored factors; "": there are none."""
    return multiplied_by(ir, [x, ir.stored([scale], "f32", [hidden])], f"{scale}.product") if scale else x


def _context(products: Products, attention: Attention, patches: Value) -> Value:
    """What the patches find, [tiles, patches, heads * D]: all see all."""
    ir, parts = products.ir, [attention.q, attention.k, attention.v]
    lengths = ir.constant([part.rows for part in parts])
    together = products.linear(patches, parts, "qkv")
    by_head: list[Value] = []
    split = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "qkv.split", 3)
    for x, norm, name in zip(split, (attention.q_norm, attention.k_norm, None), "qkv", strict=True):
        x = normed(ir, x, norm, f"{name}.norm")  # over all heads
        shape = ir.constant([0, 0, attention.heads, attention.head_dim])
        heads = ir.op("Reshape", [x, shape], f"{name}.heads", special_zero=True)
        by_head.append(ir.op("Transpose", [heads, ir.constant([0, 2, 1, 3])], f"{name}.by_head"))
    output = ir.op("ScaledDotProductAttention", by_head, "attention", causal=False)
    merged = ir.op("Transpose", [output, ir.constant([0, 2, 1, 3])], "attention.tokens")
    return ir.op("Reshape", [merged, ir.constant([0, 0, attention.o.columns])], "context", special_zero=True)


def _pooled(ir: Ir, vision: Vision, x: Value) -> Value:
    """Average pooling, as export/onnx/vision.py has it."""
    by, side = vision.pooling, vision.grid // vision.pooling
    if by == 1:
        return x
    shape = ir.constant([0, side, by, side, by, vision.hidden])
    squares = ir.op("Reshape", [x, shape], "pooling.squares", special_zero=True)
    means = ir.op("ReduceMean", [squares, ir.constant([2, 4])], "pooling.means", keep_dims=False)
    return ir.op("Reshape", [means, ir.constant([0, side * side, vision.hidden])], "pooled", special_zero=True)


def _shuffled(ir: Ir, vision: Vision, x: Value) -> Value:
    """Pixel shuffle, as export/onnx/vision.py has it."""
    by, side = vision.pixel_shuffle, vision.grid // vision.pooling // vision.pixel_shuffle
    if by == 1:
        return x
    shape = ir.constant([0, side, by, side, by, vision.hidden])
    squares = ir.op("Reshape", [x, shape], "squares", special_zero=True)
    ordered = ir.op("Transpose", [squares, ir.constant([0, 1, 3, 2, 4, 5])], "squares.ordered")
    flat = ir.constant([0, side * side, by * by * vision.hidden])
    return ir.op("Reshape", [ordered, flat], "shuffled", special_zero=True)
