"""Attention over latents in an ONNX graph (MLA, absorbed): the KV holds one short vector of each token for all heads.

With the latent c of a token, key head h is [k_rope, K_h c], value head h is V_h c. So q . key = q_rope . k_rope +
(K_h^T q_nope) . c, and the weighted sum of values is V_h (weighted sum of c): every head reads the same vectors,
[k_rope, c], as keys and as values. Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.2 and appendix C.

GroupQueryAttention reads the vectors once for each head, which steps have to wait for. So a few tokens attend by a
product of all heads at once, and prompts by the operator, which skips what is not seen: docs/performance.md#mla.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from embedllm.export.onnx.builder import MICROSOFT, Graph
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture.attention import Attention, MultiHeadLatent
from embedllm.package.architecture.weights import Linear

_FEW = 8  # tokens that attend by products of all heads
_HIDDEN = -3e38  # added to the score of a key that is not seen


class RotateHeads(Protocol):
    """Applies RoPE to x [B, T, heads * head_dim]."""

    def __call__(self, x: str, attention: Attention, heads: int, *, head_dim: int = 0) -> str: ...


class LatentAttentions:
    """Writes the layers' attention over latents. lengths, positions: as Attentions has them."""

    def __init__(
        self, products: Products, norms: Norms, lengths: Sequence[str], positions: str, rotate: RotateHeads
    ) -> None:
        self.graph: Graph = products.graph
        self.products, self.norms, self.rotate = products, norms, rotate
        self.lengths, self.positions = lengths, positions
        scope, self.graph.scope = self.graph.scope, "latents"
        self._places = self._places_of_tokens()
        self._is_few, self._mask = self._condition(), self._few_mask()
        self.graph.scope = scope

    def attend(self, number: int, attention: Attention, mla: MultiHeadLatent, normed: str) -> str:
        """Appends to the KV and attends: [B, T, heads * value_dim]."""
        graph = self.graph
        q, new = self._projected(attention, mla, normed)
        present = f"present.{number}.key"
        # in place: past and present are one buffer
        graph.node("ScatterND", [f"past_key_values.{number}.key", self._places, new], [present], graph.named("append"))
        latents = graph.choice(
            self._is_few,
            "context.latent",
            then=partial(self._attend_few, attention, q, present),
            otherwise=partial(self._attend_many, attention, q, present),
        )
        return self._values(attention, mla, latents)

    def _projected(self, attention: Attention, mla: MultiHeadLatent, normed: str) -> tuple[str, str]:
        """Queries for latents [B, heads, T, latent_dim], and what the KV gets [B, T, latent_dim]."""
        graph, products, rope_dim = self.graph, self.products, mla.k.rows
        parts = [attention.q if mla.q is None else mla.q, mla.kv, mla.k]
        q, latent, k_rope = products.split_linear(
            normed, parts, ["q", "kv_a", "k_rope"], "latents", split="latents.split"
        )
        if mla.q is not None:
            q_latent = q if mla.q_norm is None else self.norms.plain(q, mla.q_norm, "q.normed")
            q = products.linear(q_latent, [attention.q], "q.heads")
        latent = self.norms.plain(latent, mla.kv_norm, "kv.normed")
        k_rope = self.rotate(k_rope, attention, 1, head_dim=rope_dim)
        new = graph.op("Concat", [k_rope, latent], "k.latent", axis=-1)
        by_head = graph.op(
            "Reshape",
            [self.rotate(q, attention, attention.heads), graph.constant(0, 0, attention.heads, attention.head_dim)],
            "q.by_head",
        )
        heads_first = graph.op("Transpose", [by_head], "q.heads_first", perm=[0, 2, 1, 3])
        q_rope, q_nope = graph.named("q_rope"), graph.named("q_nope")
        sizes = graph.constant(rope_dim, attention.head_dim - rope_dim)
        graph.node("Split", [heads_first, sizes], [q_rope, q_nope], graph.named("q.split"), axis=-1)
        absorbed = graph.op("MatMul", [q_nope, self._by_head(attention, attention.k, mla, "k_nope")], "q_nope.absorbed")
        return graph.op("Concat", [q_rope, absorbed], "q.latent", axis=-1), new

    def _values(self, attention: Attention, mla: MultiHeadLatent, latents: str) -> str:
        """What heads found [B, heads, T, latent_dim], as their values [B, T, heads * value_dim]."""
        graph = self.graph
        bounds = [graph.constant(at) for at in (mla.k.rows, attention.latent_dim, 3)]
        latent = graph.op("Slice", [latents, *bounds], "context.without_rope")
        matrices = self._by_head(attention, attention.v, mla, "v")
        transposed = graph.op("Transpose", [matrices], "v.transposed", perm=[0, 2, 1])
        values = graph.op("MatMul", [latent, transposed], "context.heads")
        tokens = graph.op("Transpose", [values], "context.tokens", perm=[0, 2, 1, 3])
        return graph.op("Reshape", [tokens, graph.constant(0, 0, attention.heads * mla.value_dim)], "context")

    def _by_head(self, attention: Attention, part: Linear, mla: MultiHeadLatent, name: str) -> str:
        """What expands a latent, [heads, rows of a head, rank], as floats that are made when the runtime loads."""
        floats = self.products.unpacked([part], self.products.packing[part.name], self.graph.named(name))
        return self.graph.op(
            "Reshape", [floats, self.graph.constant(attention.heads, -1, mla.kv.rows)], f"{name}.by_head"
        )

    def _attend_few(self, attention: Attention, q: str, present: str) -> str:
        """Scores of all heads and tokens are one product, over the whole buffer: what is not held is hidden."""
        graph, heads = self.graph, attention.heads
        rows = graph.op("Reshape", [q, graph.constant(0, 1, -1, attention.latent_dim)], "few.q")
        scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
        scores = graph.op("FusedMatMul", [rows, present], "few.products", MICROSOFT, transB=1, alpha=scale)
        by_head = graph.op("Reshape", [scores, graph.constant(0, heads, -1, 0)], "few.by_head")
        masked = graph.op("Add", [by_head, self._mask], "few.scores")
        weights = graph.op("Softmax", [masked], "few.weights", axis=-1)
        flat = graph.op("Reshape", [weights, graph.constant(0, 1, -1, 0)], "few.flat")
        latents = graph.op("MatMul", [flat, present], "few.found")
        return graph.op("Reshape", [latents, graph.constant(0, heads, -1, attention.latent_dim)], "few.context")

    def _attend_many(self, attention: Attention, q: str, present: str) -> str:
        """By the operator, which is given no new keys: they are appended already."""
        graph, heads, size = self.graph, attention.heads, attention.latent_dim
        tokens = graph.op("Transpose", [q], "many.tokens", perm=[0, 2, 1, 3])
        flat = graph.op("Reshape", [tokens, graph.constant(0, 0, heads * size)], "many.q")
        none = graph.op("Slice", [flat, *(graph.constant(*at) for at in ((0, 0), (0, size), (1, 2)))], "many.none")
        scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
        inputs = [flat, none, none, present, present, *self.lengths]
        output = graph.op("GroupQueryAttention", inputs, "many.attention", MICROSOFT, num_heads=heads, kv_num_heads=1,
                          scale=scale)  # fmt: skip
        by_head = graph.op("Reshape", [output, graph.constant(0, 0, heads, size)], "many.by_head")
        return graph.op("Transpose", [by_head], "many.context", perm=[0, 2, 1, 3])

    def _places_of_tokens(self) -> str:
        """Where the new tokens go in the KV [B, 1, capacity, D]: [B, T, 3]."""
        graph = self.graph
        places = graph.op("Unsqueeze", [self.positions, graph.constant(-1)], "places")
        head = graph.op("Sub", [places, places], "head")
        zero, one = (graph.constant(each, scalar=True) for each in (0, 1))
        shape = graph.op("Shape", [self.positions], "shape")
        count = graph.op("Gather", [shape, zero], "batch", axis=0)
        rows = graph.op("Range", [zero, count, one], "rows")
        apart = graph.op("Unsqueeze", [rows, graph.constant(1, 2)], "rows.apart")
        each = graph.op("Add", [head, apart], "rows.each")
        return graph.op("Concat", [each, head, places], "places.of_tokens", axis=-1)

    def _condition(self) -> str:
        graph = self.graph
        shape = graph.op("Shape", ["input_ids"], "tokens.shape")
        count = graph.op("Gather", [shape, graph.constant(1, scalar=True)], "tokens.count", axis=0)
        return graph.op("LessOrEqual", [count, graph.constant(_FEW, scalar=True)], "are_few")

    def _few_mask(self) -> str:
        """What is added to the scores of the last tokens, [B, 1, at most _FEW, capacity]."""
        graph = self.graph
        last = graph.op(
            "Slice", [self.positions, graph.constant(-_FEW), graph.constant(2**31), graph.constant(1)], "last"
        )
        queries = graph.op("Unsqueeze", [last, graph.constant(1, 3)], "queries")
        shape = graph.op("Shape", ["past_key_values.0.key"], "kv.shape")
        capacity = graph.op("Gather", [shape, graph.constant(2, scalar=True)], "capacity", axis=0)
        zero, one = (graph.constant(each, scalar=True) for each in (0, 1))
        keys = graph.op("Range", [zero, capacity, one], "keys")
        is_visible = graph.op("LessOrEqual", [keys, queries], "seen")
        return graph.op("Where", [is_visible, graph.number(0.0), graph.number(_HIDDEN)], "mask")
