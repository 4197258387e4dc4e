"""Matrices and norms of a layer, by the names that a family's checkpoints have for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.recurrent import ShortConv
from embedllm.package.architecture.weights import Linear, Norm, Origin

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "relu2": "relu2",
}  # fmt: skip


def activation(
    config: Config, key: str = "hidden_act", default: str = "silu", names: Mapping[str, str] = ACTIVATIONS
) -> str:
    """The name by which embedllm/package/architecture knows what config.json calls for. Raises UnsupportedModel."""
    name = config.text(key, default)
    if name not in names:
        family, choices = config.text("model_type", ""), ", ".join(names)
        raise UnsupportedModel(f"{key} is '{name}'; the {family} description knows {choices}.")
    return names[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Of the parts in a checkpoint, Llama's by default; empty: the family has no such part.

    Where q, k and v lie in one tensor it is `qkv`, and `gate_up` where the gate lies in front of up.
    """

    model: str = "model"
    embedding: str = "embed_tokens"
    positions: str = ""
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"
    attention_norm: str = "input_layernorm"
    attention_post_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_post_norm: str = ""
    qkv: str = ""
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    gate_up: str = ""
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    alphas: str = "mlp.act_fn"  # of the activation xielu

    def in_model(self, name: str) -> str:
        return f"{self.model}.{name}" if self.model else name


LLAMA = Names()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a model: in values, heads and rows."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocabulary: int

    @staticmethod
    def of(config: Config) -> Sizes:
        """By Llama's keys. Raises UnsupportedModel where the heads of keys don't divide those of queries."""
        hidden = config.integer("hidden_size")
        heads = config.integer("num_attention_heads")
        kv_heads = config.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise UnsupportedModel(f"{heads} attention heads are no multiple of {kv_heads} key/value heads.")
        return Sizes(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=config.integer("head_dim", hidden // heads),
            layers=config.integer("num_hidden_layers"),
            vocabulary=config.integer("vocab_size"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NormKind:
    """How a family norms; Llama's by default."""

    kind: str = "rms"
    weight_offset: float = 0.0
    weight: bool = True  # False: it is 1
    bias: bool = False
    key: str = "rms_norm_eps"  # of the epsilon in config.json
    epsilon: float = 1e-6  # what a config that does not say it means

    def named(self, config: Config, name: str, source: str, size: int) -> Norm:
        """The norm of that name, whose tensors in the source begin with `source`."""
        return Norm(
            name=name,
            source=f"{source}.weight" if self.weight else "",
            size=size,
            epsilon=config.number(self.key, self.epsilon, above=0),
            kind=self.kind,
            bias=f"{source}.bias" if self.bias else "",
            weight_offset=self.weight_offset,
        )


RMS = NormKind()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Makes the parts of one layer."""

    config: Config
    sizes: Sizes
    names: Names
    norm_kind: NormKind
    transposed: bool
    name: str  # of the layer in weights.safetensors
    source: str  # and in the checkpoint

    def norm(self, part: str, where: str) -> Norm | None:
        """A norm of the stream; None where the family has none."""
        if not where:
            return None
        return self.norm_kind.named(self.config, f"{self.name}.{part}", f"{self.source}.{where}", self.sizes.hidden)

    def head_norm(self, part: str, where: str, heads: int, kind: NormKind, *, over: str, pairs: int) -> Norm:
        """Of q or k: over each head, over all of them, or each head by weights of its own ("heads").

        pairs: leading dimensions of each head with interleaved (GPT-J style) RoPE in the source.
        """
        size = self.sizes.head_dim
        norm = kind.named(self.config, f"{self.name}.{part}", f"{self.source}.{where}",
                          heads * size if over == "all" else size)  # fmt: skip
        groups = heads if over == "heads" else 1
        values = norm.size * groups
        origin = Origin(rows=values, head_rows=size, interleaved=pairs) if pairs and norm.source else None
        return replace(norm, groups=groups, origin=origin)

    def linear(
        self, part: str, where: str, rows: int, columns: int, *, bias: bool = False, origin: Origin | None = None
    ) -> Linear:
        """A matrix. origin: where its rows are not a tensor of its own."""
        if self.transposed and origin is None:
            origin = Origin(rows=rows, transposed=True)
        return Linear(
            name=f"{self.name}.{part}",
            source=f"{self.source}.{where}",
            rows=rows,
            columns=columns,
            bias=bias,
            origin=origin,
        )

    def qkv(self, *, groups: int, bias: bool, pairs: int) -> tuple[Linear, Linear, Linear]:
        """The matrices of q, k and v. groups, pairs: of Shape."""
        sizes, names = self.sizes, self.names
        counts = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
        linears: list[Linear] = []
        start, stride = 0, sum(counts) * sizes.head_dim // groups
        for part, where, heads in zip("qkv", (names.q, names.k, names.v), counts, strict=True):
            rows = heads * sizes.head_dim
            head, rotary = (sizes.head_dim, pairs) if pairs and part != "v" else (0, 0)
            origin = Origin(rows=rows, head_rows=head, interleaved=rotary) if rotary else None
            if names.qkv:
                block = rows // groups
                origin = Origin(rows=stride * groups, start=start, block=block if groups > 1 else 0,
                                stride=stride if groups > 1 else 0, transposed=self.transposed,
                                head_rows=head, interleaved=rotary)  # fmt: skip
                start += block
            place = names.qkv or where
            linears.append(self.linear(f"attention.{part}", place, rows, sizes.hidden, bias=bias, origin=origin))
        return linears[0], linears[1], linears[2]

    def attention(self, *, bias: bool = False, norms: bool = False, rope: int | None = 0) -> Attention:
        """The layer's attention over whole heads. norms: q and k have some, over each head. rope: of Attention."""
        sizes, names = self.sizes, self.names
        q, k, v = self.qkv(groups=1, bias=bias, pairs=0)
        q_norm, k_norm = (
            self.head_norm(f"attention.{part}_norm", where, heads, self.norm_kind, over="head", pairs=0)
            if norms
            else None
            for part, where, heads in (("q", names.q_norm, sizes.heads), ("k", names.k_norm, sizes.kv_heads))
        )
        return Attention(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            q=q,
            k=k,
            v=v,
            o=self.linear("attention.o", names.o, sizes.hidden, sizes.heads * sizes.head_dim, bias=bias),
            q_norm=q_norm,
            k_norm=k_norm,
            rope=rope,
        )

    def layer(self, mixer: Attention | ShortConv, mlp: Mlp) -> Layer:
        """One whose norms stand before both."""
        names = self.names
        return Layer(
            attention_norm=self.norm("attention_norm", names.attention_norm),
            attention=mixer,
            mlp_norm=self.norm("mlp_norm", names.mlp_norm),
            mlp=mlp,
        )

    def mlp(self, inner: int, activation: str, *, bias: bool = False) -> Mlp:
        """The layer's mlp of `inner` values."""
        names = self.names
        gate, up = self._gate_up(inner, bias)
        down = self.linear("mlp.down", names.down, self.sizes.hidden, inner, bias=bias)
        alphas = f"{self.source}.{names.alphas}" if activation == "xielu" else ""
        return Mlp(gate=gate, up=up, down=down, activation=activation, xielu_alphas=alphas)

    def _gate_up(self, inner: int, bias: bool) -> tuple[Linear | None, Linear]:
        names, hidden = self.names, self.sizes.hidden
        if names.gate_up:
            both = [Origin(rows=2 * inner, start=start) for start in (0, inner)]
            gate, up = (
                self.linear(f"mlp.{part}", names.gate_up, inner, hidden, bias=bias, origin=origin)
                for part, origin in zip(("gate", "up"), both, strict=True)
            )
            return gate, up
        gate = self.linear("mlp.gate", names.gate, inner, hidden, bias=bias) if names.gate else None
        return gate, self.linear("mlp.up", names.up, inner, hidden, bias=bias)
