"""The decoder of a model that takes images as openvino-genai runs it: without its embedding, a model of its own.

Embeddings have features of images in the places of their tokens. Inputs: inputs_embeds [B, T, hidden], attention_mask,
position_ids and beam_idx, as decoder.py has them, and by the kind of model
- token_type_ids [B, T] i64 (Gemma 3, large Gemma 4): 1 for the tokens of an image, which see each other;
- per_layer_inputs [B, T, layers, size] (small Gemma 4): rows of the table of per-layer embeddings;
- position_ids [3, B, T] (M-RoPE): time, row and column; of a recurrent model [4, B, T]: the place among tokens first;
- visual_pos_masks [B, T] boolean and deepstack_visual_embeds [layers, rows, hidden] (DeepStack): which tokens are an
  image's, and what is added to their rows behind the first layers.
Source: the classes of visual_language of openvino-genai (2026.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedllm.export.openvino.attention import Shared, rotations, temperatures
from embedllm.export.openvino.decoder_parts import DecoderParts
from embedllm.export.openvino.elementwise import added, multiplied_by
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.rope import Mrope
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import INPUTS_EMBEDS, POSITION_IDS
from embedllm.package.packing import Packing
from embedllm.package.rope import mrope_axes
from embedllm.package.tensors import rope_name

TOKEN_TYPES, PER_LAYER = "token_type_ids", "per_layer_inputs"
DEEPSTACK, DEEPSTACK_PLACES = "deepstack_visual_embeds", "visual_pos_masks"


def write_embedding(ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> None:
    """Writes the embedding: input_ids [B, T] i64 to inputs_embeds [B, T, hidden]."""
    assert decoder.position_embeddings is None  # of those it has no positions
    ids = ir.parameter("input_ids", "i64", 2)
    embeddings = DecoderParts(ir, decoder, packing).embedded(ids, ids)
    ir.split("Result", [embeddings], "inputs_embeds.result", 0)


def write_per_layer_embedding(ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> None:
    """Writes the table of per-layer embeddings: input_ids [B, T] i64 to per_layer_inputs [B, T, layers, size]."""
    inputs, vision = decoder.per_layer_embedding, decoder.vision
    assert inputs is not None
    assert vision is not None
    ids = ir.parameter("input_ids", "i64", 2)
    is_image = ir.op("Equal", [ids, ir.constant(vision.image_token)], "is_image", type="boolean", **BROADCAST)
    ids = ir.op("Select", [is_image, ir.constant(0), ids], "ids", type="i64", **BROADCAST)  # as padding has
    rows = DecoderParts(ir, decoder, packing).per_layer_rows(inputs, ids)
    by_layer = ir.op("Reshape", [rows, ir.constant([0, 0, -1, inputs.size])], "by_layer", tensor=PER_LAYER,
                     special_zero=True)  # fmt: skip
    ir.split("Result", [by_layer], "per_layer_inputs.result", 0)


def write_language_model(ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> None:
    """Writes all behind the embedding."""
    parts = DecoderParts(ir, decoder, packing)
    x = ir.parameter(INPUTS_EMBEDS, "f32", [-1, -1, decoder.hidden])
    mask = ir.parameter("attention_mask", "i64", 2)
    mrope = decoder.rope.mrope
    positions = ir.parameter(POSITION_IDS, "i64", 2 if mrope is None else 3)
    beams = ir.parameter("beam_idx", "i32", 1)
    batch, length = ir.size(x, 0, "batch"), ir.size(x, 1, "length")
    image_blocks = _image_blocks(ir) if decoder.images_are_bidirectional else None
    if decoder.model_type == "gemma3":  # whose positions openvino-genai counts from 1
        positions = ir.op("Subtract", [positions, ir.constant(1)], "positions", **BROADCAST)
    tables = rotations(ir, decoder, positions) if mrope is None else [_mrope_tables(ir, decoder, mrope, positions)]
    masks, in_chunks = parts.masks(mask, positions, length, image_blocks)
    shared = Shared(batch=batch, beams=beams, rope_tables=tables, masks=masks, chunk_masks=in_chunks,
                    temperatures=temperatures(ir, decoder, positions))  # fmt: skip
    per_layer_inputs = None
    if (inputs := decoder.per_layer_embedding) is not None:
        rows = ir.parameter(PER_LAYER, "f32", [-1, -1, len(decoder.layers), inputs.size])
        per_layer_inputs = parts.per_layer_inputs(inputs, rows, x)
    is_deepstack = isinstance(decoder.vision, DynamicVision) and decoder.vision.deepstack
    parts.write(x, shared, per_layer_inputs, _deepstack(ir, decoder, x) if is_deepstack else None)


def _image_blocks(ir: Ir) -> Value:
    """[B, T], a number above 0 for the tokens of each image. Between two images there is other text."""
    types = ir.parameter(TOKEN_TYPES, "i64", 2)
    is_text = ir.op("Subtract", [ir.constant(1), types], "image_blocks.text", **BROADCAST)
    before = ir.op("CumSum", [is_text, ir.constant(1)], "image_blocks.before", exclusive=False, reverse=False)
    plus_one = ir.op("Add", [before, ir.constant(1)], "image_blocks.plus_one", **BROADCAST)
    return multiplied_by(ir, [plus_one, types], "image_blocks")


def _mrope_tables(ir: Ir, decoder: Decoder, mrope: Mrope, positions: Value) -> tuple[Value, Value]:
    """cos and sin [B, 1, T, rotated] of the positions: each pair of dimensions by the axis that rotates it."""
    half = decoder.rope.rotary_dim // 2
    axes = mrope_axes(mrope, half)
    flat = ir.constant([float(axis == at) for at in range(3) for axis in axes], "f32")
    chosen = ir.op("Reshape", [flat, ir.constant([3, 1, 1, half])], "mrope.axes", special_zero=False)
    tables: list[Value] = []
    if decoder.is_recurrent:
        positions = ir.op("Slice", [positions, *(ir.constant([at]) for at in (1, 4, 1, 0))], "mrope.positions")
    for part in ("cos", "sin"):
        table = ir.stored([rope_name(0, part)], "f32", [decoder.context, half])
        rows = ir.op("Gather", [table, positions, ir.constant(0)], f"mrope.{part}.rows", batch_dims=0)
        of_axis = multiplied_by(ir, [rows, chosen], f"mrope.{part}.chosen")
        by_token = ir.op("ReduceSum", [of_axis, ir.constant([0])], f"mrope.{part}.tokens", keep_dims=False)
        wide = ir.op("Concat", [by_token, by_token], f"mrope.{part}.both", axis=-1)
        tables.append(ir.op("Unsqueeze", [wide, ir.constant(1)], f"mrope.{part}"))
    return tables[0], tables[1]


def _deepstack(ir: Ir, decoder: Decoder, x: Value) -> Callable[[int, Value], Value]:
    """Adds to the output of the first layers the rows of its tokens. x: embeddings."""
    assert isinstance(decoder.vision, DynamicVision)
    places = ir.parameter(DEEPSTACK_PLACES, "boolean", 2)
    features = ir.parameter(DEEPSTACK, "f32", [-1, -1, decoder.hidden])
    flat = ir.op("Reshape", [places, ir.constant([-1])], "deepstack.places.given", special_zero=False)
    # of text alone, and of several beams, it gives one place for all
    flat = ir.op("Broadcast", [flat, _token_count(ir, x)], "deepstack.places", mode="numpy")
    numbers = ir.op("Convert", [flat], "deepstack.numbers", type="i64", destination_type="i64")
    count = ir.op("CumSum", [numbers, ir.constant(0)], "deepstack.count", exclusive=False, reverse=False)
    last = ir.op("Subtract", [count, ir.constant(1)], "deepstack.last", **BROADCAST)
    rows = ir.op("Maximum", [last, ir.constant(0)], "deepstack.rows", **BROADCAST)  # of text any one, times 0
    floats = ir.op("Convert", [flat], "deepstack.floats", type="f32", destination_type="f32")
    is_image = ir.op("Unsqueeze", [floats, ir.constant(1)], "deepstack.is_image")
    layers = len(decoder.vision.deepstack)

    def add(index: int, output: Value) -> Value:
        if index >= layers:
            return output
        own = ir.op("Gather", [features, ir.constant(index), ir.constant(0)], "deepstack.own", batch_dims=0)
        by_token = ir.op("Gather", [own, rows, ir.constant(0)], "deepstack.by_token", batch_dims=0)
        of_images = multiplied_by(ir, [by_token, is_image], "deepstack.of_images")
        shape = ir.op("ShapeOf", [output], "deepstack.shape", type="i64", output_type="i64")
        more = ir.op("Reshape", [of_images, shape], "deepstack", special_zero=False)
        return added(ir, [output, more], "with_deepstack")

    return add


def _token_count(ir: Ir, x: Value) -> Value:
    """[1], of all sequences."""
    shape = ir.op("ShapeOf", [x], "token_count.shape", type="i64", output_type="i64")
    sizes = ir.op("Gather", [shape, ir.constant([0, 1]), ir.constant(0)], "token_count.sizes", batch_dims=0)
    return ir.op("ReduceProd", [sizes, ir.constant([0])], "token_count", keep_dims=True)
