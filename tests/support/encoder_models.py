"""Models that transformers has no classes of, in torch, after the code that is published with their checkpoints.

Jina Embeddings v2: jinaai/jina-bert-implementation. Nomic Embed 2: nomic-ai/nomic-bert-2048.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional


class EncoderConfig(SimpleNamespace):
    """The keys of a config.json."""

    def __init__(self, attn_implementation: str = "", **values: object) -> None:
        super().__init__(**values)


class _Saved(nn.Module):
    config: EncoderConfig

    def init_weights(self) -> None:
        """The matrices as transformers draws them, so that tokens and their positions count."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.config.initializer_range)

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: values.contiguous() for name, values in self.state_dict().items()}, folder / "model.safetensors"
        )
        said = {**vars(self.config), "architectures": [type(self).__name__]}
        if type(self).__name__.endswith("Classification"):
            said["id2label"] = {str(label): f"LABEL_{label}" for label in range(self.config.num_labels)}
        (folder / "config.json").write_text(json.dumps(said))


def _modules(**parts: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(parts)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[B, T, H * D] as [B, H, T, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _attended(scores: Tensor, values: Tensor) -> Tensor:
    return (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)


def _alibi_slopes(heads: int) -> list[float]:
    """As the paper's code has them."""
    if math.log2(heads).is_integer():
        first = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [first * first**head for head in range(heads)]
    lower = 2 ** math.floor(math.log2(heads))
    return _alibi_slopes(lower) + _alibi_slopes(2 * lower)[0::2][: heads - lower]


class JinaBertModel(_Saved):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        hidden, inner = config.hidden_size, config.intermediate_size
        self.embeddings = _modules(
            word_embeddings=nn.Embedding(config.vocab_size, hidden),
            token_type_embeddings=nn.Embedding(config.type_vocab_size, hidden),
            LayerNorm=nn.LayerNorm(hidden, config.layer_norm_eps),
        )

        def layer() -> nn.ModuleDict:
            own = _modules(**{name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")})
            output = _modules(dense=nn.Linear(hidden, hidden), LayerNorm=nn.LayerNorm(hidden, config.layer_norm_eps))
            mlp = _modules(
                gated_layers=nn.Linear(hidden, 2 * inner, bias=False),
                wo=nn.Linear(inner, hidden),
                layernorm=nn.LayerNorm(hidden, config.layer_norm_eps),
            )
            return _modules(attention=nn.ModuleDict({"self": own, "output": output}), mlp=mlp)

        self.encoder = _modules(layer=nn.ModuleList(layer() for _ in range(config.num_hidden_layers)))
        self.pooler = _modules(dense=nn.Linear(hidden, hidden))
        self.init_weights()

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> tuple[Tensor]:
        config, heads = self.config, self.config.num_attention_heads
        tables = self.embeddings
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = tables["LayerNorm"](tables["word_embeddings"](input_ids) + tables["token_type_embeddings"](types))
        places = torch.arange(input_ids.shape[1])
        bias = -(places[:, None] - places[None]).abs() * torch.tensor(_alibi_slopes(heads))[:, None, None]
        for each in cast("nn.ModuleList", self.encoder["layer"]):
            layer: Any = each
            own, output, mlp = layer["attention"]["self"], layer["attention"]["output"], layer["mlp"]
            q, k, v = (_by_head(own[name](x), heads) for name in ("query", "key", "value"))
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
            x = output["LayerNorm"](output["dense"](_attended(scores, v)) + x)
            gated, plain = mlp["gated_layers"](x).chunk(2, dim=-1)
            active = functional.gelu(gated) if config.feed_forward_type == "geglu" else functional.relu(gated)
            x = mlp["layernorm"](mlp["wo"](active * plain) + x)
        return (x,)


class JinaBertForSequenceClassification(_Saved):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config, self.bert = config, JinaBertModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.init_weights()

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> SimpleNamespace:
        (hidden,) = self.bert(input_ids, token_type_ids)
        return SimpleNamespace(logits=self.classifier(self.bert.pooler["dense"](hidden[:, 0]).tanh()))


class _Experts(nn.Module):
    """MegaBlocks' layout: the experts lie behind each other, the second matrices transposed; one bias for all."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.count, self.top_k = config.num_experts, config.moe_top_k
        self.router = _modules(layer=nn.Linear(config.n_embd, self.count, bias=False))
        self.experts = nn.Module()
        self.experts.mlp = nn.Module()
        for name in ("w1", "w2"):
            values = 0.2 * torch.randn(self.count * config.n_inner, config.n_embd)
            self.experts.mlp.register_parameter(name, nn.Parameter(values))
        self.experts.bias = nn.Parameter(torch.zeros(config.n_embd))

    def forward(self, x: Tensor) -> Tensor:
        experts: Any = self.experts
        weights, chosen = self.router["layer"](x).softmax(-1).topk(self.top_k, dim=-1)
        first, second = (values.unflatten(0, (self.count, -1)) for values in (experts.mlp.w1, experts.mlp.w2))
        every = torch.einsum("etn,enh->teh", functional.gelu(torch.einsum("th,enh->etn", x[0], first)), second)
        taken = every.gather(1, chosen[0][..., None].expand(-1, -1, every.shape[-1]))
        return (weights[0][..., None] * taken).sum(1)[None] + experts.bias


class NomicMoeModel(_Saved):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        hidden, epsilon = config.n_embd, config.layer_norm_epsilon
        self.embeddings = _modules(
            word_embeddings=nn.Embedding(config.vocab_size, hidden),
            token_type_embeddings=nn.Embedding(config.type_vocab_size, hidden),
        )
        self.emb_ln = nn.LayerNorm(hidden, epsilon)

        def layer(index: int) -> nn.ModuleDict:
            attention = _modules(Wqkv=nn.Linear(hidden, 3 * hidden), out_proj=nn.Linear(hidden, hidden))
            mlp: nn.Module = _modules(fc1=nn.Linear(hidden, config.n_inner), fc2=nn.Linear(config.n_inner, hidden))
            if index % config.moe_every_n_layers == 1:
                mlp = _Experts(config)
            return _modules(
                attn=attention, mlp=mlp, norm1=nn.LayerNorm(hidden, epsilon), norm2=nn.LayerNorm(hidden, epsilon)
            )

        self.encoder = _modules(layers=nn.ModuleList(layer(index) for index in range(config.n_layer)))
        self.init_weights()

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        tables = self.embeddings
        x = self.emb_ln(
            tables["word_embeddings"](input_ids) + tables["token_type_embeddings"](torch.zeros_like(input_ids))
        )
        for each in cast("nn.ModuleList", self.encoder["layers"]):
            layer: Any = each
            q, k, v = (_by_head(part, self.config.n_head) for part in layer["attn"]["Wqkv"](x).chunk(3, dim=-1))
            q, k = self.rotated(q), self.rotated(k)
            context = _attended(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), v)
            x = layer["norm1"](layer["attn"]["out_proj"](context) + x)
            mlp = layer["mlp"]
            made = mlp(x) if isinstance(mlp, _Experts) else mlp["fc2"](functional.gelu(mlp["fc1"](x)))
            x = layer["norm2"](made + x)
        return (x,)

    def rotated(self, x: Tensor) -> Tensor:
        """Halves of each head, [B, H, T, D]."""
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[2])[:, None] * self.config.rotary_emb_base ** -(torch.arange(half) / half)
        first, second = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


CLASSES: Mapping[str, Any] = {
    each.__name__: each for each in (EncoderConfig, JinaBertModel, JinaBertForSequenceClassification, NomicMoeModel)
}
