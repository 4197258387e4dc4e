"""The model as transformers' Idefics3ForConditionalGeneration has it, tensor by tensor, written to train fast.

Its state_dict() is that class's. Attention over several independent turns of one picture is what it adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.train_seeing_model.text_format import END, IMAGE, PAD, START, TILE_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the vision encoder and of the decoder."""

    vocabulary: int
    image_size: int = 128
    patch_size: int = 8
    vision_hidden: int = 192
    vision_inner: int = 768
    vision_layers: int = 6
    vision_heads: int = 6
    scale_factor: int = 2
    hidden: int = 256
    inner: int = 640
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    context: int = 512
    rope_theta: float = 10000.0
    eps: float = 1e-5

    def config(self) -> dict[str, object]:
        """config.json."""
        return {
            "architectures": ["Idefics3ForConditionalGeneration"],
            "model_type": "idefics3",
            "image_token_id": IMAGE,
            "scale_factor": self.scale_factor,
            "tie_word_embeddings": True,
            "torch_dtype": "float16",
            "bos_token_id": START,
            "eos_token_id": END,
            "pad_token_id": PAD,
            "vision_config": {
                "model_type": "idefics3_vision",
                "hidden_size": self.vision_hidden,
                "intermediate_size": self.vision_inner,
                "num_hidden_layers": self.vision_layers,
                "num_attention_heads": self.vision_heads,
                "image_size": self.image_size,
                "patch_size": self.patch_size,
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-6,
            },
            "text_config": {
                "model_type": "llama",
                "vocab_size": self.vocabulary,
                "hidden_size": self.hidden,
                "intermediate_size": self.inner,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.hidden // self.heads,
                "max_position_embeddings": self.context,
                "rope_theta": self.rope_theta,
                "rms_norm_eps": self.eps,
                "hidden_act": "silu",
                "tie_word_embeddings": True,
                "bos_token_id": START,
                "eos_token_id": END,
                "pad_token_id": PAD,
            },
        }


class _VisionAttention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(hidden, hidden) for _ in "qkv")
        self.out_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (one(x).view(shape).transpose(1, 2) for one in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _VisionMlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class _VisionLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.vision_hidden
        self.layer_norm1, self.layer_norm2 = (nn.LayerNorm(hidden, eps=1e-6) for _ in "12")
        self.self_attn = _VisionAttention(hidden, sizes.vision_heads)
        self.mlp = _VisionMlp(hidden, sizes.vision_inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class _Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.kv_heads = sizes.heads, sizes.kv_heads
        size = sizes.hidden // sizes.heads
        self.q_proj = nn.Linear(sizes.hidden, sizes.heads * size, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, sizes.kv_heads * size, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, sizes.kv_heads * size, bias=False)
        self.o_proj = nn.Linear(sizes.heads * size, sizes.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        q = _rotated(self.q_proj(x).view(batch, length, self.heads, -1).transpose(1, 2), cos, sin)
        k = _rotated(self.k_proj(x).view(batch, length, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = functional.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class _Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=False) for _ in "gu")
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.hidden, eps=sizes.eps)
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden, eps=sizes.eps)
        self.self_attn, self.mlp = _Attention(sizes), _Mlp(sizes.hidden, sizes.inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class _Embeddings(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.vision_hidden
        self.patch_embedding = nn.Conv2d(3, hidden, sizes.patch_size, sizes.patch_size)
        self.position_embedding = nn.Embedding((sizes.image_size // sizes.patch_size) ** 2, hidden)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.patch_embedding(pixels).flatten(2).transpose(1, 2) + self.position_embedding.weight


class _Encoder(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_VisionLayer(sizes) for _ in range(sizes.vision_layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _Vision(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embeddings, self.encoder = _Embeddings(sizes), _Encoder(sizes)
        self.post_layernorm = nn.LayerNorm(sizes.vision_hidden, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.post_layernorm(self.encoder(self.embeddings(pixels)))


class _Projection(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.proj = nn.Linear(sizes.vision_hidden * sizes.scale_factor**2, sizes.hidden, bias=False)


class _Connector(nn.Module):
    """A token of scale_factor x scale_factor patches, rows of patches first, as Idefics3Connector.pixel_shuffle."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self._factor, self._side = sizes.scale_factor, sizes.image_size // sizes.patch_size
        self.modality_projection = _Projection(sizes)

    def forward(self, x: Tensor) -> Tensor:
        factor, rows = self._factor, self._side // self._factor
        x = x.view(len(x), rows, factor, rows, factor, -1).permute(0, 1, 3, 2, 4, 5)
        return self.modality_projection.proj(x.reshape(len(x), TILE_TOKENS, -1))


class _Text(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=sizes.eps)
        size = sizes.hidden // sizes.heads
        steps = torch.arange(0, size, 2).float() / size
        angles = torch.outer(torch.arange(sizes.context).float(), sizes.rope_theta**-steps).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


class _Model(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.vision_model, self.connector, self.text_model = _Vision(sizes), _Connector(sizes), _Text(sizes)


class SeeingModel(nn.Module):
    """Pixels and token ids to logits."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, self.model = sizes, _Model(sizes)
        for name, value in self.named_parameters():
            if value.ndim >= 2:
                is_last = name.endswith(("out_proj.weight", "o_proj.weight", "fc2.weight", "down_proj.weight"))
                nn.init.normal_(value, std=0.02 / (2 * sizes.layers) ** 0.5 if is_last else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(value)

    def compile_layers(self) -> None:
        """One compiled layer for each of both kinds, which all of its kind share."""
        for layer in (*self.model.vision_model.encoder.layers, *self.model.text_model.layers):
            layer.compile(dynamic=False)

    def features(self, pixels: Tensor) -> Tensor:
        """[B, TILE_TOKENS, hidden] of pixels [B, 3, H, W]."""
        return self.model.connector(self.model.vision_model(pixels))

    def forward(self, features: Tensor, ids: Tensor, groups: Tensor, positions: Tensor) -> Tensor:
        """The last states [B, T, hidden]. groups: see visible()."""
        is_image = ids == IMAGE
        rows = (is_image.cumsum(1) - 1).clamp(0, TILE_TOKENS - 1)
        seen = features.gather(1, rows[..., None].expand(-1, -1, features.shape[-1]))
        embedded = self.model.text_model.embed_tokens(ids)
        x = torch.where(is_image[..., None], seen.to(embedded.dtype), embedded)
        return self.model.text_model(x, positions, visible(groups)[:, None])

    def logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self.model.text_model.embed_tokens.weight)

    def checkpoint(self) -> dict[str, Tensor]:
        """What model.safetensors has, in float16."""
        return {name: value.half().contiguous().cpu() for name, value in self.state_dict().items()}


def visible(groups: Tensor) -> Tensor:
    """Which keys a query attends to, [B, T, T]: earlier ones of its group, and those of group 0, the picture's.

    groups [B, T]: 0 for the picture and for a chat that follows it; a number above 0 for a turn that knows no other
    turn; a number below 0 for one that does not know the picture either.
    """
    length = groups.shape[1]
    queries, keys = groups[:, :, None], groups[:, None, :]
    is_earlier = torch.ones(length, length, dtype=torch.bool, device=groups.device).tril()
    return is_earlier & ((queries == keys) | ((keys == 0) & (queries > 0)))
