"""The tensors of a decoder, listed from its description in the order in which they are stored, and their names.

As the description, this needs nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer, Mixer
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.position_bias import DisentangledAttention, RelativePositionBias
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.architecture.vision import DynamicVision, PatchPooler, Vision
from embedllm.package.architecture.weights import Linear, Norm, Origin
from embedllm.package.entries import LATENT_AND_VALUES
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.recurrent_state import mixer_states

ATTENTION_GATE = "attention_gate"  # what graphs call the product of Attention.gate
DRAFT_TOKENS = "draft_tokens"  # of a draft head with fewer rows than there are tokens: the token of each, I32
PATCHES = "vision.patches"  # the stored convolution of Vision.patches
CLASS_TOKEN = "vision.class_token"  # the stored Vision.class_token
POOLED = "vision.pooled"  # begins the names of what is stored of PatchPooler.standardize
CLIPS = ("input_min", "input_max", "output_min", "output_max")  # of Linear.clip, and end the names of what is stored
_CHANNELS = 3  # of an image


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A small stored tensor: weights of a norm, a bias, scores of sinks."""

    name: str  # in weights.safetensors
    source: str  # the tensor in the source; empty: `offset` is all there is
    size: int
    offset: float = 0.0  # what is added to the source's values
    width: int = 1  # values of a row of the source's tensor
    origin: Origin | None = None


def mlps(mlp: Mlp | Moe | None) -> tuple[Mlp, ...]:
    """The mlp itself, or all of a mixture, the shared one last; none of a layer that has none."""
    if mlp is None:
        return ()
    if isinstance(mlp, Mlp):
        return (mlp,)
    return mlp.experts if mlp.shared is None else (*mlp.experts, mlp.shared)


def attention_runs(attention: Attention) -> Iterator[tuple[Linear, ...]]:
    """The matrices that queries, keys and values come from."""
    mla = attention.mla
    if mla is None:
        yield (attention.q, attention.k, attention.v) if attention.kv_from is None else (attention.q,)
        if attention.gate is not None:
            yield (attention.gate,)
        return
    yield (attention.q if mla.q is None else mla.q, mla.kv, mla.k)
    if mla.q is not None:
        yield (attention.q,)
    yield (attention.k, attention.v)


def mixer_products(mixer: Mixer) -> tuple[tuple[str, tuple[Linear, ...]], ...]:
    """The products of the stream: what graphs call them, and their quantized matrices, which lie side by side."""
    if isinstance(mixer, ShortConv):
        return (("bcx", (mixer.b, mixer.c, mixer.x)),)
    if isinstance(mixer, DeltaNet):
        return (("qkvz", (mixer.q, mixer.k, mixer.v, mixer.z)),)
    if isinstance(mixer, Mamba2):
        return (("xbcz", (mixer.x, mixer.b, mixer.c, mixer.z)),)
    qkv = ("qkv", (mixer.q, mixer.k, mixer.v) if mixer.kv_from is None else (mixer.q,))
    return (qkv,) if mixer.gate is None else (qkv, (ATTENTION_GATE, (mixer.gate,)))


def mixer_inputs(mixer: Mixer) -> tuple[Linear, ...]:
    """The quantized matrices that read the stream."""
    return tuple(linear for _, parts in mixer_products(mixer) for linear in parts)


def layer_runs(layer: Layer) -> Iterator[tuple[Linear, ...]]:
    """The matrices of a layer in file order; those of a run lie next to each other and have the same input."""
    mixer = layer.attention
    yield from attention_runs(mixer) if isinstance(mixer, Attention) else [mixer_inputs(mixer)]
    yield (mixer.o,)
    if layer.ssm is not None:
        yield mixer_inputs(layer.ssm)
        yield (layer.ssm.o,)
    yield from mlp_runs(layer.mlp)
    if layer.per_layer_input is not None:
        yield (layer.per_layer_input.gate,)
        yield (layer.per_layer_input.up,)
    if layer.laurel is not None:
        yield (layer.laurel.down,)
        yield (layer.laurel.up,)


def mlp_runs(mlp: Mlp | Moe | None) -> Iterator[tuple[Linear, ...]]:
    """As layer_runs() of a layer's mlp. All gates of a mixture lie side by side, then all ups, then all downs, so that
    what is stored of each can be one tensor, [experts, rows, ...] (docs/families.md#experts-as-one-operator)."""
    if isinstance(mlp, Moe):
        gates = tuple(expert.gate for expert in mlp.experts if expert.gate is not None)
        yield gates + tuple(expert.up for expert in mlp.experts)
        yield tuple(expert.down for expert in mlp.experts)
        mlp = mlp.shared
    if mlp is not None:
        yield (mlp.up,) if mlp.gate is None else (mlp.gate, mlp.up)
        yield (mlp.down,)


def packed_alike(run: Sequence[Linear], packing: Mapping[str, object]) -> Iterator[tuple[Linear, ...]]:
    """Neighbouring matrices in parts, each of matrices that are packed alike and can be one tensor of a graph."""
    yield from (tuple(part) for _, part in groupby(run, lambda linear: packing.get(linear.name)))


def vision_runs(decoder: Decoder) -> Iterator[tuple[Linear, ...]]:
    """The quantized matrices of a vision encoder and its projector, as layer_runs() gives those of a layer."""
    if decoder.vision is not None:
        for layer in decoder.vision.layers:
            yield from layer_runs(layer)
        if isinstance(decoder.vision, DynamicVision):
            for merger in decoder.vision.mergers:
                yield from ((linear,) for linear in merger.matrices)
        else:
            yield from ((linear,) for linear in decoder.vision.projector_matrices)


def small_matrices(decoder: Decoder) -> Iterator[Linear]:
    """Those that stay floats: learned positions, what chooses experts or weighs streams, an encoder's own."""
    if decoder.position_embeddings is not None:
        yield decoder.position_embeddings
    if decoder.vision is not None and decoder.vision.positions is not None:
        yield decoder.vision.positions
    if decoder.encoder is not None:
        yield from (step.linear for step in decoder.encoder.dense)
        if decoder.encoder.token_types is not None:
            yield decoder.encoder.token_types
        if isinstance(decoder.encoder.position_bias, RelativePositionBias | DisentangledAttention):
            yield decoder.encoder.position_bias.table
    for layer in decoder.layers:
        if isinstance(layer.attention, DeltaNet):
            yield from (layer.attention.beta, layer.attention.decay)
        yield from (mixer.step for mixer in (layer.attention, layer.ssm) if isinstance(mixer, Mamba2))
        if isinstance(layer.mlp, Moe):
            yield layer.mlp.router
            if layer.mlp.shared_gate is not None:
                yield layer.mlp.shared_gate
        if layer.altup is not None:
            yield from (layer.altup.router, layer.altup.predict, layer.altup.correct)


def linears(layer: Layer) -> Iterator[Linear]:
    """Every matrix of a layer that is quantized, in the order in which they are stored."""
    for run in layer_runs(layer):
        yield from run


def tables(decoder: Decoder) -> tuple[Linear, ...]:
    """Every quantized table whose rows are looked up by token."""
    per_layer = None if decoder.per_layer_embedding is None else decoder.per_layer_embedding.table
    return (decoder.embedding,) if per_layer is None else (decoder.embedding, per_layer)


def outer_matrices(decoder: Decoder) -> Iterator[Linear]:
    """Every quantized matrix of a product that is no layer's, the head aside."""
    if decoder.per_layer_embedding is not None:
        yield decoder.per_layer_embedding.projection
    if decoder.altup_streams is not None:
        yield from (*decoder.altup_streams.projections, *decoder.altup_streams.unembed_projections)
    if decoder.mtp is not None:
        yield decoder.mtp.fc
    if decoder.eagle is not None:
        yield decoder.eagle.fc


def norms(decoder: Decoder) -> Iterator[Norm]:
    """Every norm of a model, in the order in which they are stored."""
    all_norms = [decoder.embedding_norm, decoder.per_layer_embedding and decoder.per_layer_embedding.norm]
    bias = decoder.encoder and decoder.encoder.position_bias
    all_norms += [bias.norm] if isinstance(bias, DisentangledAttention) else []
    all_norms += [decoder.mtp.embedding_norm, decoder.mtp.hidden_norm] if decoder.mtp is not None else []
    all_norms += [decoder.eagle.hidden_norm] if decoder.eagle is not None else []
    for layer in decoder.layers:
        mixer = layer.attention
        inner = [mixer.q_norm, mixer.k_norm, mixer.v_norm] if isinstance(mixer, Attention) else []
        inner += [each.norm for each in (mixer, layer.ssm) if isinstance(each, DeltaNet | Mamba2)]
        all_norms += [layer.attention_norm, *inner, layer.attention_post_norm]
        if isinstance(mixer, Attention) and mixer.mla is not None:
            all_norms += [mixer.mla.q_norm, mixer.mla.kv_norm]
        all_norms += [layer.mlp_norm, layer.mlp_post_norm]
        if isinstance(layer.mlp, Moe) and (own := layer.mlp.norms) is not None:
            all_norms += [own.router, own.experts, own.experts_post, own.shared, own.shared_post]
        all_norms += [part and part.norm for part in (layer.per_layer_input, layer.altup, layer.laurel)]
    all_norms += [decoder.norm, *(step.norm for step in (decoder.encoder.dense if decoder.encoder else ()))]
    if decoder.vision is not None:
        for layer in decoder.vision.layers:
            mixer = layer.attention
            inner = [mixer.q_norm, mixer.k_norm, mixer.v_norm] if isinstance(mixer, Attention) else []
            all_norms += [layer.attention_norm, *inner, layer.attention_post_norm, layer.mlp_norm, layer.mlp_post_norm]
        if isinstance(decoder.vision, DynamicVision):
            mergers = decoder.vision.mergers
            all_norms += [decoder.vision.pixels_norm, decoder.vision.patches_norm, decoder.vision.positions_norm]
            all_norms += [norm for merger in mergers for norm in merger.norms]
        else:
            all_norms += [decoder.vision.norm, decoder.vision.projector_norm]
    yield from (norm for norm in all_norms if norm is not None)


def vectors(decoder: Decoder) -> Iterator[Vector]:
    """Every small tensor but the rotations and learned positions, in the order in which they are stored."""
    for norm in norms(decoder):
        size, width = norm.groups * norm.size, norm.size if norm.groups > 1 and not norm.is_flat else 1
        offset = norm.weight_offset if norm.source else 1.0
        weight = Vector(
            name=f"{norm.name}.weight", source=norm.source, size=size, offset=offset, width=width, origin=norm.origin
        )
        yield weight
        if norm.bias:
            yield replace(weight, name=f"{norm.name}.bias", source=norm.bias, offset=0.0)
    matrices = [linear for layer in decoder.layers for linear in linears(layer)]
    matrices += [linear for run in vision_runs(decoder) for linear in run]
    for linear in (*matrices, *small_matrices(decoder), decoder.head):
        if linear.bias:
            source = f"{linear.source}.bias"
            yield Vector(name=f"{linear.name}.bias", source=source, size=linear.rows, origin=linear.origin)
        if linear.clip:
            for part in CLIPS:
                yield Vector(name=f"{linear.name}.{part}", source=f"{linear.clip}.{part}", size=1)
    for index, layer in enumerate(decoder.layers):
        if layer.scale:
            yield Vector(name=scale_name(index), source=layer.scale, size=1)
        if layer.altup is not None:
            yield Vector(name=altup_scale_name(index), source=layer.altup.scale, size=decoder.hidden)
        yield from _mixer_vectors(index, layer.attention)
        if layer.ssm is not None:
            yield from _mixer_vectors(index, layer.ssm)
        for mlp in mlps(layer.mlp):
            if mlp.xielu_alphas:
                for part in ("alpha_p", "alpha_n"):
                    yield Vector(name=alpha_name(mlp, part), source=f"{mlp.xielu_alphas}.{part}", size=1)
        if isinstance(layer.mlp, Moe) and layer.mlp.score_correction_bias:
            size = len(layer.mlp.experts)
            width = size if layer.mlp.score_correction_bias_is_row else 1
            yield Vector(
                name=score_correction_name(index), source=layer.mlp.score_correction_bias, size=size, width=width
            )
        if isinstance(layer.mlp, Moe) and layer.mlp.expert_scales:
            yield Vector(name=expert_scales_name(index), source=layer.mlp.expert_scales, size=len(layer.mlp.experts))
        if isinstance(layer.mlp, Moe) and layer.mlp.bias:
            yield Vector(name=experts_bias_name(index), source=layer.mlp.bias, size=decoder.hidden)
    if decoder.vision is not None:
        yield from _patch_vectors(decoder.vision)
        for index, layer in enumerate(decoder.vision.layers):
            if isinstance(mixer := layer.attention, ShortConv):
                size = mixer.x.rows * mixer.kernel**2
                yield Vector(
                    name=patch_convolution_name(index), source=mixer.convolution, size=size, width=mixer.kernel
                )
            for name, source in zip(layer_scales(index, layer), (layer.attention_scale, layer.mlp_scale), strict=True):
                if source:
                    yield Vector(name=name, source=source, size=decoder.vision.hidden)


def _patch_vectors(vision: Vision | DynamicVision) -> Iterator[Vector]:
    """The convolution that makes patches, whose kernels are rows of `patch_size` values in the source, or one row; what
    standardizes pools."""
    source, kernel = vision.patches, _CHANNELS * vision.patch_size**2
    is_dynamic = isinstance(vision, DynamicVision)
    size = vision.hidden * kernel * (vision.temporal_patch_size if is_dynamic else 1)
    width = vision.patch_size
    if is_dynamic and (vision.patches_channels_last or vision.patches_are_flat):
        width = size // vision.hidden
    yield Vector(name=f"{PATCHES}.weight", source=f"{source}.weight", size=size, width=width)
    if is_dynamic and isinstance(vision.merger, PatchPooler) and vision.merger.standardize:
        for part in ("std_bias", "std_scale"):
            source = f"{vision.merger.standardize}.{part}"
            yield Vector(name=f"{POOLED}.{part}", source=source, size=vision.hidden)
    if not is_dynamic or vision.patches_bias:
        yield Vector(name=f"{PATCHES}.bias", source=f"{vision.patches}.bias", size=vision.hidden)
    if not is_dynamic and vision.class_token:
        yield Vector(name=CLASS_TOKEN, source=vision.class_token, size=vision.hidden, width=vision.hidden)


def scale_name(index: int) -> str:
    """Of the stored number that a layer multiplies the stream by."""
    return f"layers.{index}.scale"


def _mixer_vectors(index: int, mixer: Mixer) -> Iterator[Vector]:
    if isinstance(mixer, Attention):
        if mixer.sinks:
            yield Vector(name=sinks_name(index), source=mixer.sinks, size=mixer.heads)
        return
    values = mixer_states(mixer)["conv"][1]
    name, size = convolution_name(index, "weight"), values * mixer.kernel
    yield Vector(name=name, source=mixer.convolution, size=size, width=mixer.kernel)
    if isinstance(mixer, DeltaNet):
        for part, source in (("log_decay", mixer.log_decay), ("decay_bias", mixer.decay_bias)):
            yield Vector(name=decay_name(index, part), source=source, size=mixer.value_heads)
        return
    if isinstance(mixer, Mamba2):
        for part, source in (("log_decay", mixer.log_decay), ("step_bias", mixer.step_bias), ("skip", mixer.skip)):
            yield Vector(name=decay_name(index, part), source=source, size=mixer.heads)
    if mixer.bias:
        yield Vector(name=convolution_name(index, "bias"), source=mixer.bias, size=values)


def altup_scale_name(index: int) -> str:
    """Of the stored factors of what a layer's per_layer_input reads."""
    return f"layers.{index}.altup.scale"


def sinks_name(index: int) -> str:
    """Of the stored sinks of a layer."""
    return f"layers.{index}.attention.sinks"


def convolution_name(index: int, part: str) -> str:
    """Of the stored convolution of a layer. part: "weight" or "bias"."""
    return f"layers.{index}.attention.convolution.{part}"


def patch_convolution_name(index: int) -> str:
    """Of the stored convolution of a layer of a vision encoder."""
    return f"vision.{convolution_name(index, 'weight')}"


def layer_scales(index: int, layer: Layer) -> tuple[str, str]:
    """Of what is stored of attention_scale and mlp_scale of a layer of a vision encoder; "" of one that it has not."""
    attention, mlp = (f"vision.layers.{index}.{part}_scale" for part in ("attention", "mlp"))
    return attention if layer.attention_scale else "", mlp if layer.mlp_scale else ""


def decay_name(index: int, part: str) -> str:
    """Of what is stored of a layer's state. part: "log_decay", "decay_bias" or, of Mamba-2, "step_bias", "skip"."""
    return f"layers.{index}.attention.{part}"


def alpha_name(mlp: Mlp, part: str) -> str:
    """Of a stored number of xielu. part: "alpha_p" or "alpha_n"."""
    return f"{mlp.up.name}.{part}"


def score_correction_name(index: int) -> str:
    """Of the stored correction of a layer's router."""
    return f"layers.{index}.mlp.correction"


def expert_scales_name(index: int) -> str:
    """Of what the weights of a layer's chosen experts are multiplied by."""
    return f"layers.{index}.mlp.scales"


def experts_bias_name(index: int) -> str:
    """Of what is added to the sum of a layer's experts."""
    return f"layers.{index}.mlp.bias"


def rope_name(index: int, part: str) -> str:
    """Of the stored table of a rotation, by the number that Attention.rope has. part: "cos" or "sin"."""
    return f"rope.{part}" if index == 0 else f"rope.local.{part}"


ROPE_TABLES = rope_name(0, "cos"), rope_name(0, "sin")  # of M-RoPE, which a graph has as inputs with defaults, too


def parameters(decoder: Decoder | ExternalGraph) -> int:
    """Number of weights; a tied head counts once."""
    if isinstance(decoder, ExternalGraph):
        return decoder.parameters
    matrices = [*(m for layer in decoder.layers for m in linears(layer)), *tables(decoder)]
    matrices += [linear for run in vision_runs(decoder) for linear in run]
    matrices += [*small_matrices(decoder), *outer_matrices(decoder), *(() if decoder.tied else (decoder.head,))]
    return sum(m.rows * m.columns for m in matrices) + sum(vector.size for vector in vectors(decoder) if vector.source)


def rotary_bytes(decoder: Decoder | ExternalGraph) -> int:
    """Bytes of the rotary tables: they grow with the context, and are no weights."""
    if isinstance(decoder, ExternalGraph):
        return 0
    return sum(4 * decoder.context * rope.rotary_dim for rope in decoder.ropes)  # cos and sin of half of it each


def kv_windows(decoder: Decoder) -> tuple[int | None, ...]:
    """Of each keys and values that are kept, by their numbers: what those who read them see; None: all."""
    readers: dict[int, list[int | None]] = {}
    for index, layer in enumerate(decoder.layers):
        if isinstance(layer.attention, Attention):
            readers.setdefault(decoder.kv_number(index), []).append(layer.attention.window)
    windows = [readers[number] for number in sorted(readers)]
    return tuple(None if None in group else max(window or 0 for window in group) for group in windows)


def kv_shapes(decoder: Decoder | ExternalGraph, kv: str = "") -> list[tuple[int, int, int]]:
    """By layer that keeps keys and values: KV heads, and the sizes of a key and of a value. kv: as Graph has it."""
    if isinstance(decoder, ExternalGraph):
        return [(heads, size, size) for heads, size in decoder.kv]
    if not kv:
        return [(one.kv_heads, one.head_dim, one.head_dim) for one in decoder.kv_attentions]
    ranks = [one.mla.kv.rows if one.mla and kv == LATENT_AND_VALUES else 0 for one in decoder.kv_attentions]
    return [(1, one.latent_dim, rank) for one, rank in zip(decoder.kv_attentions, ranks, strict=True)]


def kv_bytes(decoder: Decoder | ExternalGraph, tokens: int, bytes_per_value: int = 4, *, kv: str = "") -> int:
    """Memory of the KV cache for that many tokens. kv: as Graph has it."""
    if isinstance(decoder, Decoder) and decoder.encoder is not None:
        return 0
    per_token = sum(heads * (key + value) for heads, key, value in kv_shapes(decoder, kv))
    return per_token * bytes_per_value * tokens
