"""An EAGLE-3 head in torch, unrolled over several guesses (Li et al. 2025, arXiv:2503.01840, "training-time test").

Guess number j at place t reads the token t + 1 and what the guess before it made at place t - 1; the first reads hidden
states of the model. Its attention sees the first guess's keys up to place t - j, and of each later guess the one key
on its own way, as in decoding: what was guessed has keys of the head's own making.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

_NAMES = {  # of a published head's weights, by ours
    "fc": "fc", "q": "midlayer.self_attn.q_proj", "k": "midlayer.self_attn.k_proj", "v": "midlayer.self_attn.v_proj",
    "o": "midlayer.self_attn.o_proj", "gate": "midlayer.mlp.gate_proj", "up": "midlayer.mlp.up_proj",
    "down": "midlayer.mlp.down_proj", "lm_head": "lm_head", "embedding_norm": "midlayer.input_layernorm",
    "hidden_norm": "midlayer.hidden_norm", "mlp_norm": "midlayer.post_attention_layernorm", "norm": "norm",
}  # fmt: skip


_GROUP, _LEVELS = 32, 15  # values that share a scale in a package, and the largest of four bits


class Matrix(nn.Linear):
    """Without a bias. Rounded to four bits once `rounds`, as a package stores it; what it learns passes through that.

    spread: of each column's input, by which it is divided beforehand; a package's matrix is divided by it, too.
    """

    def __init__(self, rows: int, columns: int, spread: Tensor | None = None) -> None:
        super().__init__(columns, rows, bias=False)
        nn.init.normal_(self.weight, std=0.5 * columns**-0.5)
        self.rounds = False
        self.spread: Tensor
        self.register_buffer("spread", torch.ones(columns) if spread is None else spread, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self._rounded() if self.rounds else self.weight)

    def _rounded(self) -> Tensor:
        with torch.no_grad():
            groups = (self.weight / self.spread).unflatten(-1, (-1, _GROUP))
            low = groups.amin(-1, keepdim=True).clamp(max=0)
            scale = ((groups.amax(-1, keepdim=True).clamp(min=0) - low) / _LEVELS).clamp(min=1e-12)
            zero = (-low / scale).round()
            levels = ((groups / scale).round() + zero).clamp(0, _LEVELS)
            change = ((levels - zero) * scale).flatten(-2) * self.spread - self.weight
        return self.weight + change


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a head; its hidden size is the model's."""

    layers: tuple[int, ...]  # of the model: how many lie before each hidden state that is read
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int


class Head(nn.Module):
    """The head, beside a model whose embedding it reads."""

    def __init__(self, model: transformers.PreTrainedModel, size: Size, tokens: Tensor, spread: Tensor) -> None:
        """tokens: of the rows of its matrix, ascending. It begins with these rows of the model's.

        spread: of each of the features, the root of its mean square. fc is learned of features divided by it: single
        ones are a hundred times others, and a step of Adam would change what they contribute a hundred times as much.
        """
        super().__init__()
        config, self.size = model.config, size
        hidden, epsilon = config.hidden_size, config.rms_norm_eps
        self.theta = float(config.rope_parameters["rope_theta"])
        self.tokens: Tensor
        self.spread: Tensor
        self.register_buffer("tokens", tokens)
        self.register_buffer("spread", spread)
        self.fc = Matrix(hidden, len(size.layers) * hidden, spread)
        self.q = Matrix(size.heads * size.head_dim, 2 * hidden)
        self.k, self.v = (Matrix(size.kv_heads * size.head_dim, 2 * hidden) for _ in range(2))
        self.o = Matrix(hidden, size.heads * size.head_dim)
        self.gate, self.up = (Matrix(size.intermediate, hidden) for _ in range(2))
        self.down = Matrix(hidden, size.intermediate)
        self.lm_head = Matrix(size.vocabulary, hidden)
        norms = (nn.RMSNorm(hidden, eps=epsilon) for _ in range(4))
        self.embedding_norm, self.hidden_norm, self.mlp_norm, self.norm = norms
        with torch.no_grad():
            last = spread[-hidden:].to(self.fc.weight.device)
            self.fc.weight[:, -hidden:] += (last / last.square().mean().sqrt()).diag()  # the last layer's pass through
            self.lm_head.weight.copy_(model.lm_head.weight[tokens.to(model.device)])
            self.norm.weight.copy_(model.model.norm.weight)

    def round_matrices(self) -> None:
        """From now on the head computes with what a package of four bits stores."""
        for each in self.modules():
            if isinstance(each, Matrix):
                each.rounds = True

    def unrolled(self, embedded: Tensor, features: Tensor, guesses: int) -> list[Tensor]:
        """Logits of each guess, [B, T, draft vocabulary]: at place t, of token t + 2. Guess j has none before place j.

        embedded: [B, T, D] of the tokens from the second on. features: [B, T, layers * D] of those from the first on.
        """
        hidden, made = self.fc(features / self.spread), []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        rotation = self._rotation(embedded.shape[1], embedded)
        for _ in range(guesses):
            both = torch.cat([self.embedding_norm(embedded), self.hidden_norm(hidden)], dim=-1)
            q, k, v = (self._by_head(part(both)) for part in (self.q, self.k, self.v))
            repeats = self.size.heads // self.size.kv_heads
            keys.append(self._rotated(k, rotation).repeat_interleave(repeats, dim=1))
            values.append(v.repeat_interleave(repeats, dim=1))
            stream = hidden + self.o(self._attended(self._rotated(q, rotation), keys, values))
            x = self.mlp_norm(stream)
            stream = stream + self.down(functional.silu(self.gate(x)) * self.up(x))
            made.append(self.lm_head(self.norm(stream)))
            hidden = functional.pad(stream[:, :-1], (0, 0, 1, 0))
        return made

    def _attended(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Of the newest guess, [B, T, heads * D]: the first guess's keys, and one of each later guess."""
        length, newest = q.shape[2], len(keys) - 1
        q = q * self.size.head_dim**-0.5
        seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril(-newest)
        scores = [(q @ keys[0].transpose(-1, -2)).masked_fill(~seen, float("-inf"))]
        on_way = [_later(each, newest - number) for number, each in enumerate(keys)][1:]
        scores += [(q * each).sum(-1, keepdim=True) for each in on_way]
        shares = torch.cat(scores, dim=-1).softmax(-1)
        context = shares[..., :length] @ values[0]
        for number, each in enumerate(values[1:], start=1):
            context = context + shares[..., length + number - 1, None] * _later(each, newest - number)
        return context.transpose(1, 2).flatten(2)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.size.head_dim)).transpose(1, 2)

    def _rotation(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        size = self.size.head_dim
        steps = self.theta ** (-torch.arange(0, size, 2, device=like.device).float() / size)
        angles = torch.arange(length, device=like.device).float()[:, None] * steps
        return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)

    def _rotated(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        half = self.size.head_dim // 2
        swapped = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * rotation[0].to(x.dtype) + swapped * rotation[1].to(x.dtype)

    def tensors(self, vocabulary: int) -> dict[str, Tensor]:
        """Under the names of published heads, float16. vocabulary: of the model."""
        own = self.state_dict()
        own["fc.weight"] = own["fc.weight"] / self.spread
        found = {f"{theirs}.weight": own[f"{ours}.weight"].cpu().half().contiguous() for ours, theirs in _NAMES.items()}
        tokens = self.tokens.cpu()
        known = torch.zeros(vocabulary, dtype=torch.bool)
        known[tokens] = True
        return {**found, "d2t": tokens - torch.arange(len(tokens)), "t2d": known}

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from what tensors() gave of a head of the same tokens."""
        own = {f"{ours}.weight": tensors[f"{theirs}.weight"].float() for ours, theirs in _NAMES.items()}
        own["fc.weight"] = own["fc.weight"] * self.spread.cpu()
        self.load_state_dict(own, strict=False)

    def config(self, model: transformers.PretrainedConfig) -> dict[str, object]:
        """config.json, as published heads have it."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": model.hidden_size,
            "num_hidden_layers": 1, "num_attention_heads": self.size.heads, "num_key_value_heads": self.size.kv_heads,
            "head_dim": self.size.head_dim, "intermediate_size": self.size.intermediate, "hidden_act": "silu",
            "vocab_size": model.vocab_size, "draft_vocab_size": self.size.vocabulary,
            "max_position_embeddings": model.max_position_embeddings, "rms_norm_eps": model.rms_norm_eps,
            "rope_theta": self.theta, "tie_word_embeddings": False, "torch_dtype": "float16",
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in self.size.layers]},
        }  # fmt: skip


def _later(x: Tensor, places: int) -> Tensor:
    """x [B, H, T, D] of that many places before."""
    return functional.pad(x[:, :, : x.shape[2] - places], (0, 0, places, 0)) if places else x
