"""A vision encoder and its projector on OpenVINO, and the inputs by which a decoder takes what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.image_grid import encoder_inputs
from embedllm.backends.openvino.runtime import as_device_error, core, ov
from embedllm.errors import DeviceError
from embedllm.files.command_line import graph_command
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import OPENVINO_OUTPUT, VISION_OPENVINO
from embedllm.package.packing import packings
from embedllm.package.tensors import ROPE_TABLES, vision_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from embedllm.backends.images import WithImages
    from embedllm.backends.mrope import ImagePlaces
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.package import Package
    from embedllm.types import F32

op = ov.opset13
MOVED = "rope_positions"
IMAGE_INPUTS = ("image_features", "image_positions", MOVED, *ROPE_TABLES)
TOKEN_TYPES = "token_type_ids"
# inputs of PagedAttentionExtension (OpenVINO 2026.4)
_WINDOW_INPUT = 10  # tokens; the constant 0: all. The others are computed from that of the mask
_TOKEN_TYPES_INPUT = 25  # [tokens]: 1 for an image's, or none at all
LAST_SEEN = "last_seen"
_ROUNDING, _PLUGINS_GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE", 32  # of the processor (2026.4)
_EARLIER, _FULL_MASK = "earlier", "mask.both"  # of export/openvino/masks.py
# what a decoder's first layer is given, by the first of these layers that the model has
_EMBEDDED = ("embedding.normed", "embedding.with_positions", "embedding.multiplied", "embedding.columns", "embedding")


class OvVision:
    """The model of a folder's vision encoder."""

    def __init__(self, package: Package, target: str, properties: Mapping[str, object]) -> None:
        """Raises DeviceError."""
        vision, graph = package.decoder.vision, package.graph(VISION_OPENVINO)
        assert vision is not None
        if graph is None:
            raise DeviceError(
                f"'{package.name}' has no OpenVINO model of its vision encoder. Write it with: "
                f"{graph_command(package.folder, VISION_OPENVINO)}"
            )
        self._vision = vision
        path = package.folder / graph.file
        with as_device_error(f"cannot load '{path}' on {target}"):
            model = core().read_model(path, package.weights)
            if not isinstance(vision, DynamicVision):
                model.reshape({"pixel_values": [1, 3, vision.image_size, vision.image_size]})
            chosen = _with_rounding(package, properties) if target.partition(".")[0] == "CPU" else dict(properties)
            self.compiled = core().compile_model(model, target, chosen)
            self._request = self.compiled.create_infer_request()

    def encode(self, pixel_values: F32) -> F32:
        inputs = encoder_inputs(self._vision, pixel_values)
        with as_device_error("failed on an image"):
            self._request.infer(inputs)
            return self._request.get_output_tensor(0).data[0].astype(np.float32)  # a copy


def _with_rounding(package: Package, properties: Mapping[str, object]) -> dict[str, object]:
    """The properties, and activations rounded in groups as large as the smallest of the weights, which costs less.

    The plugin rounds none that meet weights in groups smaller than this property.
    """
    by_name = packings(package.manifest)
    own = [by_name[matrix.name] for run in vision_runs(package.decoder) for matrix in run]
    group = min((packing.group_size for packing in own if packing.quantized), default=_PLUGINS_GROUP)
    return {_ROUNDING: group, **properties} if group > _PLUGINS_GROUP else dict(properties)


def add_images(model: ov.Model, decoder: Decoder) -> None:
    """Adds the inputs `image_features` [rows, width] and `image_positions` [rows], places among all tokens of a run.

    For M-RoPE also `rope.cos` and `rope.sin` [moved, rotated / 2], and `rope_positions` [moved], the places of tokens
    whose rows of the rotary tables these are. Not in the file, because openvino-genai takes four inputs and no more.
    Raises RuntimeError.
    """
    named = {node.get_friendly_name(): node for node in model.get_ops()}
    node = next((named[name] for name in _EMBEDDED if name in named), None)
    if node is None:
        raise RuntimeError("the model has no layer 'embedding'")
    hidden = decoder.hidden
    features = _input(model, "image_features", [-1, decoder.image_width], ov.Type.f32)
    positions = _input(model, "image_positions", [-1], ov.Type.i64)
    parts = op.split(features, op.constant(1, ov.Type.i64), decoder.image_width // hidden).outputs()
    _put_rows(node, hidden, _replaced_rows(positions, parts[0]))
    for index, more in enumerate(parts[1:]):  # DeepStack
        _put_rows(named[OPENVINO_OUTPUT.format(index)], hidden, _added_rows(positions, more))
    if decoder.rope.mrope is not None:
        moved = _input(model, MOVED, [-1], ov.Type.i64)
        width = decoder.rope.rotary_dim // 2
        for name in ROPE_TABLES:
            rows = _input(model, name, [-1, width], ov.Type.f32)
            _put_rows(named[f"{name}.rows"], width, _replaced_rows(moved, rows))


def image_inputs(
    decoder: Decoder, images: WithImages | None, feeds: Sequence[tuple[ImagePlaces | None, int, int]]
) -> dict[str, np.ndarray]:
    """Those inputs. images: None where all tokens are text. feeds: of each sequence its images, and its new places."""
    features = np.zeros((0, decoder.image_width), np.float32) if images is None else images.features
    places = np.array(images.places if images else (), np.int64)
    inputs = {"image_features": features, "image_positions": places}
    if decoder.rope.mrope is None:
        return inputs
    empty = np.zeros((0, decoder.rope.rotary_dim // 2), np.float32)
    moved, rows = [np.zeros(0, np.int64)], [(empty, empty)]
    before = 0
    for own, start, stop in feeds:
        if own:
            moved.append(np.arange(before, before + stop - start))
            rows.append(own.rope_rows(start, stop))
        before += stop - start
    tables = (np.concatenate(each) for each in zip(*rows, strict=True))
    return {**inputs, MOVED: np.concatenate(moved), **dict(zip(ROPE_TABLES, tables, strict=True))}


def _input(model: ov.Model, name: str, shape: list[int], kind: ov.Type) -> ov.Node:
    parameter = op.parameter(shape, kind, name=name)
    parameter.output(0).set_names({name})
    model.add_parameters([parameter])
    return parameter


def _put_rows(node: ov.Node, width: int, put: Callable[[ov.Node], ov.Node]) -> None:
    """Lets all that reads a node's [..., width] read what `put` makes of its rows."""
    readers = node.output(0).get_target_inputs()
    flat = op.reshape(node, op.constant([-1, width], ov.Type.i64), special_zero=False)
    whole = op.reshape(put(flat), op.shape_of(node), special_zero=False)
    for reader in readers:
        reader.replace_source_output(whole.output(0))


def _replaced_rows(places: ov.Node, rows: ov.Node | ov.Output) -> Callable[[ov.Node], ov.Node]:
    return lambda flat: op.scatter_update(flat, places, rows, _rows())


def _added_rows(places: ov.Node, rows: ov.Output) -> Callable[[ov.Node], ov.Node]:
    return lambda flat: op.scatter_update(flat, places, op.add(op.gather(flat, places, _rows()), rows), _rows())


def _rows() -> ov.Node:
    return op.constant(0, ov.Type.i64)


def add_token_types(model: ov.Model, *, in_windows: bool = False) -> None:
    """Adds the input `token_type_ids` [tokens] to paged attention: neighbours of the type 1 attend to one another.

    in_windows: in layers that have a window only. Two images without a token between them would attend to one another,
    too; the prompts of such models do not have those. Raises RuntimeError where it has no such input.
    """
    types = op.parameter([-1], ov.Type.i32, name=TOKEN_TYPES)
    types.output(0).set_names({TOKEN_TYPES})
    for node in model.get_ops():
        if node.get_type_name() != "PagedAttentionExtension":
            continue
        if node.get_input_size() <= _TOKEN_TYPES_INPUT:
            raise RuntimeError("paged attention has no input for types of tokens")
        window = node.input_value(_WINDOW_INPUT).get_node()
        if in_windows and isinstance(window, ov.op.Constant) and not window.data.any():
            continue
        node.input(_TOKEN_TYPES_INPUT).replace_source_output(types.output(0))
    model.add_parameters([types])
    model.validate_nodes_and_infer_types()


def token_types(count: int, places: Sequence[int]) -> np.ndarray:
    """That input; none where all tokens are text, which costs nothing."""
    types = np.zeros(count if len(places) else 0, np.int32)
    types[list(places)] = 1
    return types


def add_last_seen(model: ov.Model, *, in_windows: bool = False) -> None:
    """Adds the input `last_seen` [T]: the last position that each token attends to, in place of its own.

    in_windows: in layers that have a window only. Raises RuntimeError.
    """
    named = {node.get_friendly_name(): node for node in model.get_ops()}
    if _EARLIER not in named:
        raise RuntimeError(f"the model has no '{_EARLIER}' of its masks")
    parameter = op.parameter([-1], ov.Type.i64, name=LAST_SEEN)
    parameter.output(0).set_names({LAST_SEEN})
    earlier = named[_EARLIER]
    readers = earlier.output(0).get_target_inputs()
    whole = op.less_equal(earlier.input_value(0), op.unsqueeze(parameter, op.constant(1, ov.Type.i64)))
    for reader in readers:
        if not (in_windows and reader.get_node().get_friendly_name() == _FULL_MASK):
            reader.replace_source_output(whole.output(0))
    model.add_parameters([parameter])
    model.validate_nodes_and_infer_types()
