"""The states of fixed size that recurrent layers keep of a sequence, by names that all backends know."""

from __future__ import annotations

import math

from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.graph_variants import GraphVariant

LENGTH_EPSILON = 1e-6  # what the square of a length is raised by where a delta rule divides by it


def mixer_states(mixer: ShortConv | DeltaNet | Mamba2) -> dict[str, tuple[int, ...]]:
    """Shapes of what a mixer keeps of one sequence, by the kind of state; all are zeros before the first token.

    "conv": what the convolution has still to see of earlier tokens, the oldest first. "recurrent": each head's matrix.
    """
    if isinstance(mixer, ShortConv):
        return {"conv": (mixer.kernel - 1, mixer.x.rows)}
    if isinstance(mixer, Mamba2):
        values = mixer.x.rows + mixer.b.rows + mixer.c.rows
        return {"conv": (mixer.kernel - 1, values), "recurrent": (mixer.heads, mixer.state_dim, mixer.head_dim)}
    values = mixer.q.rows + mixer.k.rows + mixer.v.rows
    return {"conv": (mixer.kernel - 1, values), "recurrent": (mixer.value_heads, mixer.key_dim, mixer.value_dim)}


def recurrent_mixer(layer: Layer) -> ShortConv | DeltaNet | Mamba2 | None:
    """What of a layer keeps a state: no layer has two of them."""
    return layer.ssm if isinstance(layer.attention, Attention) else layer.attention


def state_shapes(decoder: Decoder | ExternalGraph) -> dict[str, tuple[int, ...]]:
    """Of all layers, by "KIND.LAYER"."""
    if isinstance(decoder, ExternalGraph):
        return {}
    return {
        f"{kind}.{index}": shape
        for index, layer in enumerate(decoder.layers)
        if (mixer := recurrent_mixer(layer)) is not None
        for kind, shape in mixer_states(mixer).items()
    }


def state_kinds(decoder: Decoder, variant: GraphVariant) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and shape that a graph has each state in, by "KIND.LAYER"; GatedDeltaNet's are transposed."""
    kinds = {name: (variant.activations, shape) for name, shape in state_shapes(decoder).items()}
    for index, layer in enumerate(decoder.layers):
        if variant.fuses_delta_nets and isinstance(layer.attention, DeltaNet):
            name = f"recurrent.{index}"
            heads, key_dim, value_dim = kinds[name][1]
            kinds[name] = "float32", (heads, value_dim, key_dim)
    return kinds


def state_bytes(decoder: Decoder | ExternalGraph, bytes_per_value: int = 4) -> int:
    """Memory of the states of one sequence, however long it is."""
    if isinstance(decoder, ExternalGraph):
        return 0
    return bytes_per_value * sum(math.prod(shape) for shape in state_shapes(decoder).values())


def variable_name(name: str) -> str:
    """What an OpenVINO model calls a state, in the way of its keys and values."""
    return f"past_{name}present_{name}"
