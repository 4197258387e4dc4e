"""What differs between the graphs of one model: a row per variant, read by export/onnx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.directml_limits import not_on_directml
from embedllm.package.packing import Packing


def has_latents(decoder: Decoder, packing: Mapping[str, Packing]) -> bool:
    """Whether a graph can compute the attention of a model on latents. packing: by the name of the matrix."""
    attentions = decoder.attentions
    if not attentions or any(each.mla is None for each in attentions):
        return False
    # columns in another order: the floats that absorption takes would have to be brought back
    parts = [packing.get(part.name) for each in attentions for part in (each.k, each.v)]
    return not any(part.column_order for part in parts if part is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphVariant:
    """One variant of graph: which operators with which attributes, in which types."""

    name: str
    file: str
    activations: str  # "float32" or "float16": activations and KV
    accuracy_level: int  # of MatMulNBits: 0 float, 4 lets activations be rounded to int8 (docs/numerics.md)
    float_kernels: frozenset[int]  # bits for which accuracy_level 0 is a kernel, not an unpacking at every call
    norm_in_attention: bool  # GroupQueryAttention applies the q and k norms itself (CUDA, WebGPU; not the CPU)
    bias_in_matmul: bool  # MatMulNBits adds the bias itself
    # GatherBlockQuantized looks up quantized embeddings. Else standard operators do, which any reader of ONNX has:
    # OpenVINO's takes that operator only with scales that are constants in the type of the activations
    gathers_blocks: bool
    # GroupQueryAttention takes q, k and v side by side, rotates q and k, and keeps to a window
    whole_attention: bool = True
    # it does keep to a window where another layer has made the keys, so that there are no new ones (WebGPU's: 0.4.0)
    shared_kv_in_windows: bool = True
    lengths_from_mask: bool = True  # else the session gives lengths, positions and what logits it wants, as inputs
    reads_halves: bool = True  # operators take float16 as it is stored; else the runtime makes float32 of it at load
    ragged_blocks: bool = True  # MatMulNBits takes rows that are no multiple of the group
    block_of_8_bits: int = 0  # MatMulNBits reads larger groups of 8 bits as blocks of this size; 0: as they are
    odd_zero_points: bool = True  # MatMulNBits takes rows of an odd number of 8-bit zero points
    # a Split takes q, k and v apart for attention that norms q and k itself, or has a window (docs/webgpu.md#faults)
    splits_qkv: bool = False
    kv_bits: int = (
        0  # of a cached key or value, whose scales come from export/quantization/kv_scales.py; 0: as the activations
    )
    latent_kv: bool = False  # attention over latents (MLA, absorbed), which the KV holds in place of keys and values
    chunks: bool = False  # its attention takes a mask of chunks, where the context exceeds one
    recurrent: bool = False  # its operators and sessions have states of fixed size beside keys and values
    past_state: str = "past_{kind}.{layer}"  # what the input of such a state is called, and the output
    present_state: str = "present_{kind}.{layer}"
    fuses_delta_nets: bool = False  # one operator computes Gated DeltaNet with its gates, over states in float32
    # GatherElements brings values into another order; the CPU's Gather takes 8 ns for each (ONNX Runtime 1.31)
    gathers_elements: bool = False
    # Split and Concat take the rows of hundreds of experts, most of which have none: WebGPU's Concat fails (1.32)
    splits_rows: bool = False
    scatters_sums: bool = True  # ScatterND adds to what is there; WebGPU's (0.4.0) does not with float16
    fuses_experts: bool = False  # one operator computes the experts of a layer: export/onnx/fused_experts.py
    images: bool = False  # features of images are inputs, which take the place of rows of the embedding
    mrope: bool = False  # and rotary tables are, of sequences whose positions images have moved (M-RoPE)
    # and positions of tokens are, where attention takes them: sequences step together, each with its own
    position_ids: bool = False
    bidirectional: bool = False  # all tokens of a run attend to one another: those of an image
    images_by_run: bool = False  # those of a run with an image's features only: text is read by the same graph
    appends_only: bool = False  # GroupQueryAttention does, and plain operators attend: export/onnx/image_attention.py
    # embeddings are an input beside the tokens, those of images in their places, which another graph makes: prompts are
    # read in one run, so tokens of text are causal there and those of an image may attend to one another
    takes_embeddings: bool = False
    # what an encoder of images of any size computes from: "inputs", of the size (backends/image_grid.py), beside
    # pixels; "pixels" alone; or "patches" of an image and their grid, "image_grid_thw", as Qwen's processors make them
    grid_from: str = "inputs"
    # sums of products with each tap in place of CausalConvWithState, whose kernel on the CPU takes longer at any length
    convolves_by_taps: bool = False
    gives_hidden: bool = False  # hidden states are an output, for a draft head
    guesses: bool = False  # a draft head's best token is an output, with what it reads next: export/onnx/guess.py
    float_matrices: bool = (
        False  # products read matrices as float32, in the file of embedllm/package/wasm_floats.py: browsers only
    )

    def multiplies(self, bits: int, *, zero_points: int) -> bool:
        """Whether MatMulNBits is the way to multiply by matrices of that many bits, and zero points a row."""
        if self.float_matrices or (bits == 8 and zero_points % 2 and not self.odd_zero_points):
            return False
        return self.accuracy_level > 0 or bits in self.float_kernels

    def keeps_latent(self, decoder: Decoder, packing: Mapping[str, Packing]) -> bool:
        """Whether the KV of its graph of a model holds latents. packing: by the name of the matrix."""
        return self.latent_kv and has_latents(decoder, packing)

    def takes_images(self, decoder: Decoder) -> bool:
        """Whether its graph of a model has inputs for images."""
        if decoder.vision is None or not self.images:
            return False
        fits = decoder.images_are_bidirectional == self.bidirectional
        if not fits and not (decoder.images_are_bidirectional and self.images_by_run):
            return False
        return decoder.rope.mrope is None or self.mrope

    def computes_mrope(self, decoder: Decoder) -> bool:
        """Whether its graph of a model has time, row and column of tokens as an input, and rotary tables of them."""
        return self.takes_embeddings and decoder.rope.mrope is not None

    def takes_positions(self, decoder: Decoder) -> bool:
        """Whether its graph of a model has positions of tokens as an input.

        Flash attention of steps, in CUDA's GroupQueryAttention (ONNX Runtime 1.31.1), ignores them unless the operator
        norms queries and keys, too.
        """
        if decoder.rope.mrope is None or not (self.position_ids and self.takes_images(decoder)):
            return False
        return all(each.q_norm is not None and each.k_norm is not None for each in decoder.attentions)

    def states(self, kind: str, layer: int | str) -> tuple[str, str]:
        """What a recurrent layer's state is called before a run, and behind it. layer: or what stands for it."""
        return self.past_state.format(kind=kind, layer=layer), self.present_state.format(kind=kind, layer=layer)

    def unsupported(self, decoder: Decoder) -> str:
        """Why there is no such graph of a model; empty when there is one."""
        if decoder.encoder is not None and self.name not in _ENCODERS:
            return "embedding and reranker models run on cpu, cuda, openvino and reference only"
        if self.bidirectional and not self.takes_images(decoder):
            return f"'{decoder.model_type}' has no images whose tokens attend to one another"
        if self.fuses_experts and not any(qmoe_computes(layer.mlp) for layer in decoder.layers):
            return f"'{decoder.model_type}' has no experts that ONNX Runtime's QMoE computes"
        if decoder.is_recurrent and not self.recurrent:
            return f"'{decoder.model_type}' layers have a recurrent state, which sessions of '{self.name}' do not keep"
        if decoder.chunk and not self.chunks:
            return f"layers attend in chunks of {decoder.chunk} tokens, fewer than the context of {decoder.context}"
        return "" if self.whole_attention else not_on_directml(decoder)


def qmoe_computes(mlp: Mlp | Moe | None) -> bool:
    """Whether a layer has experts of SwiGLU, as QMoE's are; whether it takes their matrices, their packing says."""
    if not isinstance(mlp, Moe) or mlp.scales_input or mlp.expert_scales:  # which may be negative
        return False
    expert = mlp.experts[0]
    return expert.gate is not None and expert.activation == "silu" and not expert.sparsity_cutoff


def qmoe_takes(packing: Packing) -> bool:
    """Whether QMoE has kernels for matrices that are stored in this way."""
    return packing.quantized and not packing.has_minimum and not packing.column_order


def fuses_experts(decoder: Decoder, packing: Mapping[str, Packing]) -> bool:
    """Whether there are graphs of a model with experts as one operator. packing: by the name of the matrix."""
    return any(is_fused(layer.mlp, packing) for layer in decoder.layers)


def is_fused(mlp: Mlp | Moe | None, packing: Mapping[str, Packing]) -> bool:
    """Whether QMoE may take a layer's experts; where they lie in the file decides the rest."""
    return isinstance(mlp, Moe) and qmoe_computes(mlp) and qmoe_takes(packing[mlp.experts[0].up.name])


FLOAT32 = GraphVariant(
    name="generic-float32",
    file="model.onnx",
    activations="float32",
    accuracy_level=4,
    float_kernels=frozenset({4}),  # 8 bits: 20 ms instead of 0.3 for a 2048 x 2048 product, ONNX Runtime 1.31
    norm_in_attention=False,
    bias_in_matmul=True,
    gathers_blocks=False,
    gathers_elements=True,
    splits_rows=True,
    latent_kv=True,
    chunks=True,
    recurrent=True,
    convolves_by_taps=True,
    images=True,
    mrope=True,
)
# of models whose images' tokens attend to one another; needs ONNX Runtime 1.32, whose attention can do that
MULTIMODAL = replace(FLOAT32, name="multimodal-float32", file="model.multimodal.onnx", bidirectional=True,
                     images_by_run=True, recurrent=False)  # fmt: skip
FLOAT16 = GraphVariant(
    name="generic-float16",
    file="model.fp16.onnx",
    activations="float16",
    accuracy_level=0,
    float_kernels=frozenset({4, 8}),
    norm_in_attention=True,
    bias_in_matmul=False,
    gathers_blocks=True,
    recurrent=True,
    fuses_delta_nets=True,
    images=True,
    mrope=True,
    position_ids=True,
)
# for GPUs without float16 arithmetic; not FLOAT32, whose rounded activations are as rough there as on a CPU
GPU_FLOAT32 = replace(
    FLOAT16,
    name="gpu-float32",
    file="model.fp32.onnx",
    activations="float32",
    shared_kv_in_windows=False,
    splits_qkv=True,
    fuses_delta_nets=False,
    reads_halves=False,
    position_ids=False,
)
WEBGPU_FLOAT16 = replace(
    FLOAT16,
    name="webgpu-float16",
    file="model.webgpu.onnx",
    shared_kv_in_windows=False,
    splits_qkv=True,
    fuses_delta_nets=False,
    position_ids=False,
    scatters_sums=False,
)
# what each value is for: docs/directml.md
DIRECTML = replace(
    FLOAT16,
    name="directml-float16",
    file="model.dml.onnx",
    norm_in_attention=False,
    gathers_blocks=False,
    whole_attention=False,
    lengths_from_mask=False,
    ragged_blocks=False,
    odd_zero_points=False,
    recurrent=False,
    fuses_delta_nets=False,
    images=False,
    mrope=False,
    position_ids=False,
)
# for a browser's processor: docs/format.md#weightsfloat32
WASM = replace(
    FLOAT32,
    name="wasm-float32",
    file="model.wasm.onnx",
    accuracy_level=0,
    float_matrices=True,
    latent_kv=False,
    chunks=False,
    convolves_by_taps=False,
)
# for the CPU, of mixtures of experts; its operator is in ONNX Runtime 1.32 and later, and not exact
QMOE = replace(FLOAT32, name="qmoe-float32", file="model.qmoe.onnx", fuses_experts=True, images_by_run=True)
QMOE_FLOAT16 = replace(FLOAT16, name="qmoe-float16", file="model.qmoe.fp16.onnx", fuses_experts=True)  # for CUDA
# for the CPU; CUDA's attention takes such a cache with float16 activations only
INT8_KV = replace(
    FLOAT32, name="int8-kv", file="model.kv8.onnx", kv_bits=8, latent_kv=False, chunks=False, recurrent=False
)
INT4_KV = replace(FLOAT32, name="int4-kv", file="model.kv4.onnx", kv_bits=4, latent_kv=False, chunks=False,
                  recurrent=False)  # fmt: skip
# what a multi-token prediction head reads beside tokens, and the head itself: docs/guide-python.md#speculative-decoding
HIDDEN = replace(FLOAT32, name="hidden-float32", file="model.hidden.onnx", gives_hidden=True)
MTP = replace(FLOAT32, name="mtp-float32", file="model.mtp.onnx", gives_hidden=True, images=False, mrope=False)
# the same of an EAGLE-3 head; the first multiplies by the head's `fc`
EAGLE_HIDDEN = replace(HIDDEN, name="eagle-hidden-float32", file="model.eagle_hidden.onnx")
EAGLE = replace(MTP, name="eagle-float32", file="model.eagle.onnx")
# what QMOE is to FLOAT32, by the names of those for which there is one: of mixtures of experts
HIDDEN_QMOE = replace(HIDDEN, name="hidden-qmoe-float32", file="model.hidden_qmoe.onnx", fuses_experts=True)
MTP_QMOE = replace(MTP, name="mtp-qmoe-float32", file="model.mtp_qmoe.onnx", fuses_experts=True)
EAGLE_HIDDEN_QMOE = replace(EAGLE_HIDDEN, name="eagle-hidden-qmoe-float32", file="model.eagle_hidden_qmoe.onnx",
                            fuses_experts=True)  # fmt: skip
# all of these for CUDA, where a head goes on from guess to guess without the host
HIDDEN_FLOAT16 = replace(FLOAT16, name="hidden-float16", file="model.hidden.fp16.onnx", gives_hidden=True)
EAGLE_HIDDEN_FLOAT16 = replace(HIDDEN_FLOAT16, name="eagle-hidden-float16", file="model.eagle_hidden.fp16.onnx")
MTP_FLOAT16 = replace(HIDDEN_FLOAT16, name="mtp-float16", file="model.mtp.fp16.onnx", images=False, mrope=False,
                      position_ids=False, guesses=True)  # fmt: skip
EAGLE_FLOAT16 = replace(MTP_FLOAT16, name="eagle-float16", file="model.eagle.fp16.onnx")
HIDDEN_QMOE_FLOAT16 = replace(HIDDEN_FLOAT16, name="hidden-qmoe-float16", file="model.hidden_qmoe.fp16.onnx",
                              fuses_experts=True)  # fmt: skip
EAGLE_HIDDEN_QMOE_FLOAT16 = replace(EAGLE_HIDDEN_FLOAT16, name="eagle-hidden-qmoe-float16",
                                    file="model.eagle_hidden_qmoe.fp16.onnx", fuses_experts=True)  # fmt: skip
MTP_QMOE_FLOAT16 = replace(MTP_FLOAT16, name="mtp-qmoe-float16", file="model.mtp_qmoe.fp16.onnx", fuses_experts=True)
FUSED = {
    HIDDEN.name: HIDDEN_QMOE,
    MTP.name: MTP_QMOE,
    EAGLE_HIDDEN.name: EAGLE_HIDDEN_QMOE,
    HIDDEN_FLOAT16.name: HIDDEN_QMOE_FLOAT16,
    MTP_FLOAT16.name: MTP_QMOE_FLOAT16,
    EAGLE_HIDDEN_FLOAT16.name: EAGLE_HIDDEN_QMOE_FLOAT16,
}
WITH_QMOE = frozenset(variant.name for variant in (QMOE, QMOE_FLOAT16, *FUSED.values()))
HEAD_VARIANTS = (MTP, EAGLE, MTP_QMOE, MTP_FLOAT16, EAGLE_FLOAT16, MTP_QMOE_FLOAT16)  # of draft heads
# of the models that these draft for
EAGLE_HIDDEN_VARIANTS = (EAGLE_HIDDEN, EAGLE_HIDDEN_QMOE, EAGLE_HIDDEN_FLOAT16, EAGLE_HIDDEN_QMOE_FLOAT16)
HIDDEN_VARIANTS = (HIDDEN, HIDDEN_QMOE, HIDDEN_FLOAT16, HIDDEN_QMOE_FLOAT16, *EAGLE_HIDDEN_VARIANTS)
# graphs of draft heads, best first, by the CPU's without fused experts
HEADS_ON_CPU = {MTP.name: (MTP_QMOE.name, MTP.name), EAGLE.name: (EAGLE.name,)}
HEADS_ON_CUDA = {MTP.name: (MTP_QMOE_FLOAT16.name, MTP_FLOAT16.name), EAGLE.name: (EAGLE_FLOAT16.name,)}
HIDDEN_ON_CUDA = {  # the same of the models that they draft for
    HIDDEN.name: (HIDDEN_QMOE_FLOAT16.name, HIDDEN_FLOAT16.name),
    EAGLE_HIDDEN.name: (EAGLE_HIDDEN_QMOE_FLOAT16.name, EAGLE_HIDDEN_FLOAT16.name),
}
# of a model that is not described, whose graph another exporter has traced: embedllm/package/external_graph.py
EXTERNAL = replace(FLOAT32, name="external-float32", file="model.external.onnx", recurrent=False)
# of a vision encoder and projector: the CPU's, and those of GPUs
VISION = replace(FLOAT32, name="vision-float32", file="vision.onnx", images=False)
# WebGPU's kernel for many rows takes blocks of 32 alone; others are far slower (docs/numerics.md#vision-encoders)
_ON_GPU = {"images": False, "block_of_8_bits": 32}
VISION_FLOAT16 = replace(FLOAT16, name="vision-float16", file="vision.fp16.onnx", **_ON_GPU)
VISION_GPU_FLOAT32 = replace(GPU_FLOAT32, name="vision-gpu-float32", file="vision.fp32.onnx", **_ON_GPU)
VISION_VARIANTS = (VISION, VISION_FLOAT16, VISION_GPU_FLOAT32)  # those that are ONNX, in the order of a manifest
# by the decoder's graph that takes its features, on devices whose memory is not the host's
VISION_ON_GPU = {
    FLOAT16.name: VISION_FLOAT16,
    QMOE_FLOAT16.name: VISION_FLOAT16,
    **dict.fromkeys((name for names in HIDDEN_ON_CUDA.values() for name in names), VISION_FLOAT16),
    WEBGPU_FLOAT16.name: VISION_FLOAT16,
    GPU_FLOAT32.name: VISION_GPU_FLOAT32,
}
STATEFUL = (
    "openvino-stateful"  # of an OpenVINO model that optimum-intel wrote: embedllm/package/external/openvino_folder.py
)
GENAI = "onnxruntime-genai"  # of several graphs, which that library runs: embedllm/package/external/genai_pipeline.py
# the same for CUDA, and for WebGPU, whose attention is causal (0.4.0)
IMAGES_FLOAT16 = replace(
    FLOAT16,
    name="images-float16",
    file="model.images.fp16.onnx",
    norm_in_attention=False,
    recurrent=False,
    bidirectional=True,
)
IMAGES_WEBGPU_FLOAT16 = replace(
    IMAGES_FLOAT16, name="images-webgpu-float16", file="model.images.webgpu.onnx", appends_only=True
)
IMAGES_GPU_FLOAT32 = replace(
    IMAGES_WEBGPU_FLOAT16,
    name="images-gpu-float32",
    file="model.images.fp32.onnx",
    activations="float32",
    reads_halves=False,
)
IMAGES_VARIANTS = (MULTIMODAL, IMAGES_FLOAT16, IMAGES_GPU_FLOAT32, IMAGES_WEBGPU_FLOAT16)
# by the decoder's graph of text, as VISION_ON_GPU
IMAGES_ON_GPU = {
    FLOAT16.name: IMAGES_FLOAT16,
    QMOE_FLOAT16.name: IMAGES_FLOAT16,
    WEBGPU_FLOAT16.name: IMAGES_WEBGPU_FLOAT16,
    GPU_FLOAT32.name: IMAGES_GPU_FLOAT32,
}
# as onnxruntime-genai runs a model that takes images, on the CPU: an encoder whose only inputs are what its processor
# gives, the embedding of tokens with features of images in their places, and the decoder behind it
GENAI_DECODER = replace(
    FLOAT32,
    name="genai-decoder-float32",
    file="genai.decoder.onnx",
    latent_kv=False,
    past_state="past_key_values.{layer}.{kind}_state",
    present_state="present.{layer}.{kind}_state",
    images=False,
    takes_embeddings=True,
)
GENAI_EMBEDDING = replace(GENAI_DECODER, name="genai-embedding-float32", file="genai.embedding.onnx")
GENAI_VISION_OF_PIXELS = replace(VISION, name="genai-vision-float32", file="genai.vision.onnx", grid_from="pixels")
GENAI_VISION_OF_PATCHES = replace(GENAI_VISION_OF_PIXELS, grid_from="patches")
# in the order of an export and its manifest
VARIANTS = (FLOAT32, FLOAT16, GPU_FLOAT32, WEBGPU_FLOAT16, DIRECTML, WASM, QMOE, QMOE_FLOAT16)
CALIBRATED = (INT8_KV, INT4_KV)  # not part of an export: the model has to run to make one
_ENCODERS = (FLOAT32.name, FLOAT16.name)  # there are graphs of models that read whole texts
MTP_FOLDER, EAGLE_FOLDER = "mtp", "eagle"  # of draft heads, inside of the target model's
HIDDEN_STATES, LAST_HIDDEN_STATE = "hidden_states", "last_hidden_state"  # input of draft heads, output of both
# input: of each token the row of the rotary tables; of variants that compute these of M-RoPE, time, row and column
POSITION_IDS = "position_ids"
INPUTS_EMBEDS = "inputs_embeds"  # input of a decoder without its embedding, output of that
HIDDEN_FROM = "hidden_from"  # input: the first position whose hidden state is wanted, as logits_from
GUESS, GUESSED_TOKEN, NEXT_LENGTH = "guess", "guessed_token", "next_length"  # outputs: export/onnx/guess.py
KV_SCALES = ("kv.key_scale", "kv.value_scale")  # end the names of what lies in these graphs, not in the weights file
VISION_OPENVINO = "vision-openvino"  # the variant of a vision encoder's OpenVINO model
OPENVINO = "openvino"  # the variant of the OpenVINO model, whose operators need no table
OPENVINO_LATENT = "openvino-latent"  # of one whose KV holds the latents of MLA
# its layers, by the index of the decoder's: where a session cuts to the positions whose logits are wanted
OPENVINO_CONTEXT = "layers.{}.context"  # what attention saw, [B, T, heads * D]
OPENVINO_SSM_CONTEXT = "layers.{}.ssm.context"  # what a second mixer beside attention found
OPENVINO_SUM = "layers.{}.sum"  # adds the projection of that to its first input, the residual
OPENVINO_PER_LAYER_INPUT = "layers.{}.per_layer_input"  # per-layer embeddings of the tokens, [B, T, size], where it is
OPENVINO_OUTPUT = "layers.{}.output"  # the stream behind the layer, [B, T, hidden]


# inputs of the encoders of images of any size, which depend on the size alone: backends/image_grid.py
PATCH_ORDER = "patch_order"  # [patches]: the place of each, row by row, in the order of the squares that are merged
ROPE = ("rope_cos", "rope_sin")  # [patches, head_dim / 2]
POSITIONS = ("position_rows", "position_weights")  # [n, patches], [n, patches, 1]: of n learned positions a patch's
WINDOWS = "window_patches"  # [windows, longest]: places of patches, in the order of squares; any behind a window's end
WINDOW_MASK = "window_mask"  # [windows, longest]: 1 for patches, 0 behind a window's end
WINDOW_PLACES = "window_places"  # [patches]: where each is among all windows, one behind the other
IMAGE_GRID = "image_grid_thw"  # [images, 3]: time, rows and columns of patches, as transformers has it
