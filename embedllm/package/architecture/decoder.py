"""A whole model."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.draft_head import Eagle, MultiTokenPrediction
from embedllm.package.architecture.encoder import Encoder
from embedllm.package.architecture.layer import AltUpStreams, Layer, PerLayerEmbedding
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.rope import Rope
from embedllm.package.architecture.vision import DynamicVision, Vision
from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A whole model: embedding, layers, final norm, head."""

    model_type: str
    context: int  # most tokens that the export holds
    embedding: Linear  # rows: vocabulary, columns: hidden size
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear  # the embedding itself when tied
    rope: Rope  # rotary_dim 0: no layer has RoPE
    local_rope: Rope | None = None  # the second RoPE, of Attention.rope 1
    position_embeddings: Linear | None = None  # learned, added to the embedding
    per_layer_embedding: PerLayerEmbedding | None = None
    altup_streams: AltUpStreams | None = None
    embedding_multiplier: float = 1.0
    embedding_norm: Norm | None = None
    logits_multiplier: float = 1.0
    logits_softcap: float = 0.0  # final logit soft-capping: softcap * tanh(logit / softcap); 0: none
    encoder: Encoder | None = None  # an embedding or reranker model, which has no logits: its head is its embedding
    vision: Vision | DynamicVision | None = None  # of a vision-language model
    mtp: MultiTokenPrediction | None = None  # a multi-token prediction head of another model
    eagle: Eagle | None = None  # an EAGLE-3 head of another model

    @property
    def vocabulary(self) -> int:
        return self.embedding.rows

    @property
    def hidden(self) -> int:
        return self.embedding.columns

    @property
    def image_width(self) -> int:
        """Values of the features of a row of an image: those of an embedding, and those of DeepStack behind them."""
        deepstack = self.vision.deepstack if isinstance(self.vision, DynamicVision) else ()
        return self.hidden * (1 + len(deepstack))

    @property
    def images_are_bidirectional(self) -> bool:
        """Whether the tokens of an image attend to one another in the decoder, in any of its layers."""
        if isinstance(self.vision, DynamicVision):
            return self.vision.bidirectional_in_windows
        return self.vision is not None and self.vision.bidirectional

    @property
    def images_are_whole_in_windows_only(self) -> bool:
        """Whether they attend to one another in layers that have a window, and in no others."""
        return isinstance(self.vision, DynamicVision) and self.vision.bidirectional_in_windows

    def sees_images_whole(self, attention: Attention) -> bool:
        """Whether they attend to one another there."""
        in_all = not self.images_are_whole_in_windows_only
        return self.images_are_bidirectional and (in_all or attention.window is not None)

    @property
    def is_draft_head(self) -> bool:
        """Whether it reads hidden states of another model, for which it drafts."""
        return self.mtp is not None or self.eagle is not None

    @property
    def tied(self) -> bool:
        return self.head.name == self.embedding.name

    @property
    def uses_mla(self) -> bool:
        """Whether a layer has multi-head latent attention."""
        return any(attention.mla is not None for attention in self.attentions)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Of the layers that have attention."""
        return tuple(layer.attention for layer in self.layers if isinstance(layer.attention, Attention))

    @property
    def is_recurrent(self) -> bool:
        """Whether layers have a recurrent state, which can only be rewound to a saved copy."""
        return any(layer.ssm is not None or not isinstance(layer.attention, Attention) for layer in self.layers)

    def chunk_of(self, attention: Attention) -> int | None:
        """The chunks that attention keeps to, in tokens; None where the whole context is in the first."""
        return attention.chunk if attention.chunk is not None and attention.chunk < self.context else None

    @property
    def chunk(self) -> int | None:
        """The smallest chunks of chunked attention that the context exceeds, in tokens."""
        return min((chunk for each in self.attentions if (chunk := self.chunk_of(each))), default=None)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Every RoPE, by the numbers that Attention.rope has."""
        return tuple(rope for rope in (self.rope, self.local_rope) if rope is not None and rope.rotary_dim)

    @property
    def kv_attentions(self) -> tuple[Attention, ...]:
        """Of the layers that cache keys and values, in the order of their numbers in the KV cache."""
        return tuple(attention for attention in self.attentions if attention.kv_from is None)

    def kv_number(self, index: int) -> int:
        """Of the keys and values that a layer reads."""
        mixer = self.layers[index].attention
        source = mixer.kv_from if isinstance(mixer, Attention) else None
        earlier = (layer.attention for layer in self.layers[: index if source is None else source])
        return sum(isinstance(other, Attention) and other.kv_from is None for other in earlier)

    @property
    def layer_ropes(self) -> tuple[Rope | None, ...]:
        """The RoPE of the keys of each layer that caches some; None: NoPE."""
        numbers = (attention.rope for attention in self.kv_attentions)
        return tuple(None if number is None else self.ropes[number] for number in numbers)

    @property
    def is_mixture(self) -> bool:
        """Whether any layer chooses among experts."""
        return any(isinstance(layer.mlp, Moe) for layer in self.layers)
