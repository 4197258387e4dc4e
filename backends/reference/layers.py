"""The layers of a decoder in plain NumPy, for one sequence; where their weights come from is another's.

Follows the mathematics of embedllm/package/architecture literally, in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.checks import check_rewind
from embedllm.backends.reference.math import (
    activated,
    alike,
    beyond,
    capped,
    expert_weights,
    of_length_one,
    sigmoid,
    softmax,
    temperature,
    xielu,
)
from embedllm.package.architecture.attention import Attention, MultiHeadLatent
from embedllm.package.architecture.layer import AltUp, Layer, Mixer, PerLayerInput
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.architecture.weights import Linear, Norm
from embedllm.package.recurrent_state import state_shapes
from embedllm.package.tensors import (
    alpha_name,
    altup_scale_name,
    convolution_name,
    decay_name,
    expert_scales_name,
    experts_bias_name,
    rope_name,
    scale_name,
    score_correction_name,
    sinks_name,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.lora.adapter import Adapter
    from embedllm.types import F32


class Weights(Protocol):
    """What the layers are computed with: a folder's, or those of a checkpoint."""

    decoder: Decoder

    def tensor(self, name: str) -> np.ndarray:
        """A norm, a bias, the table of a rotation: whatever is no matrix, under the name that it has in a folder."""
        ...

    def matrix(self, linear: Linear) -> F32:
        """The float weights [rows, columns] that a matrix stands for."""
        ...


class Layers:
    """One sequence: keys and values of every layer as arrays [kv heads, position, D]."""

    def __init__(self, weights: Weights) -> None:
        self.position = 0
        self.capacity = 0  # it takes memory with each token
        self._weights = weights
        self._adapter: Adapter | None = None
        self._per_layer_inputs: F32 = np.empty(
            (0, 0, 0), np.float32
        )  # of Decoder.per_layer_embedding, [T, layers, size]
        shapes = [(a.kv_heads, 0, a.head_dim) for a in weights.decoder.kv_attentions]
        self._kv: list[tuple[F32, F32]] = [
            (np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for shape in shapes
        ]
        self._states = self._no_states()
        self._last_seen: NDArray[np.int64] | None = None  # the last position that each token attends to; None: its own

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = self.capacity = position
        self._kv = [(key[:, :position], value[:, :position]) for key, value in self._kv]
        if not position:
            self._states = self._no_states()

    def _no_states(self) -> dict[str, F32]:
        """Of a sequence of no token, by name, as embedllm/package/recurrent_state.py has them."""
        return {name: np.zeros(shape, np.float32) for name, shape in state_shapes(self._weights.decoder).items()}

    def _embedded(self, x: F32, start: int) -> F32:
        """What the first layer is given for rows [T, hidden] of the embedding. start: the position of the first."""
        decoder = self._weights.decoder
        x = x * np.float32(decoder.embedding_multiplier)
        if decoder.position_embeddings is not None:
            x = x + self._weights.tensor(f"{decoder.position_embeddings.name}.weight")[start : start + len(x)]
        return self._norm(x, decoder.embedding_norm)

    def _set_per_layer_inputs(self, x: F32, rows: F32 | None = None) -> None:
        """Keeps the per-layer embeddings of tokens. x: what the first layer is given; rows: of a table."""
        inputs = self._weights.decoder.per_layer_embedding
        assert inputs is not None
        projected = self._linear(x, inputs.projection).reshape(len(x), -1, inputs.size)
        total = self._norm(projected, inputs.norm)
        if rows is not None:
            total = total + rows.reshape(projected.shape) * np.float32(inputs.table_multiplier)
        self._per_layer_inputs = total * np.float32(inputs.multiplier)

    def _layer(self, index: int, layer: Layer, x: F32) -> F32:
        """The stream [T, hidden] behind a layer, or the streams [T, n, hidden]."""
        if layer.altup is not None:
            return self._altup_layer(index, layer, layer.altup, x)
        x = self._computed(index, layer, x)
        if layer.per_layer_input is not None:
            x = x + self._per_layer_input(index, layer.per_layer_input, x)
        return x * self._weights.tensor(scale_name(index)) if layer.scale else x

    def _altup_layer(self, index: int, layer: Layer, altup: AltUp, x: F32) -> F32:
        mixed = self._linear(self._stream_weights(altup, x[:, 0]), altup.predict).reshape(len(x), x.shape[1], -1)
        change: F32 = mixed @ x
        x = x + change
        output = self._computed(index, layer, x[:, 0])
        share = self._linear(self._stream_weights(altup, output), altup.correct) + np.float32(1)
        missed: F32 = (output - x[:, 0])[:, None]
        change = share[..., None] * missed
        x = x + change
        assert layer.per_layer_input is not None
        added = self._per_layer_input(
            index, layer.per_layer_input, x[:, 0] * self._weights.tensor(altup_scale_name(index))
        )
        return np.concatenate([x[:, :1], x[:, 1:] + added[:, None]], axis=1)

    def _stream_weights(self, altup: AltUp, first: F32) -> F32:
        return np.tanh(self._linear(self._norm(first, altup.norm), altup.router) / np.float32(first.shape[-1]))

    def _begun(self, x: F32) -> F32:
        """The streams [T, n, hidden] that begin with one; that one where there are no others."""
        streams = self._weights.decoder.altup_streams
        if streams is None:
            return x
        return np.stack([x, *(alike(self._linear(x, matrix), x) for matrix in streams.projections)], axis=1)

    def _ended(self, x: F32) -> F32:
        """One stream of all."""
        streams = self._weights.decoder.altup_streams
        if streams is None:
            return x
        others = [
            alike(self._linear(x[:, at], matrix), x[:, 0]) for at, matrix in enumerate(streams.unembed_projections, 1)
        ]
        mean: F32 = np.stack([x[:, 0], *others]).mean(axis=0)
        return mean

    def _computed(self, index: int, layer: Layer, x: F32) -> F32:
        """What a layer's attention and mlp make of a stream."""
        normed = self._norm(x, layer.attention_norm)
        mixer = layer.attention
        mixed = self._mixed(index, mixer, normed)
        mixed = mixed if layer.ssm is None else mixed + self._mamba2(index, layer.ssm, normed)
        attended = self._norm(mixed, layer.attention_post_norm)
        before, x = x, self._added(layer, x, attended)
        mlp = layer.mlp
        if mlp is None:
            return x
        if layer.laurel is not None:
            way = self._norm(self._linear(self._linear(normed, layer.laurel.down), layer.laurel.up), layer.laurel.norm)
            x = (x + normed + way) / np.float32(np.sqrt(2))
        if layer.parallel:
            mlp_input = normed if layer.mlp_norm is None else self._norm(before, layer.mlp_norm)
        else:
            mlp_input = self._norm(x, layer.mlp_norm)
        output = self._mlp(mlp, mlp_input) if isinstance(mlp, Mlp) else self._moe(index, mlp, mlp_input)
        return self._added(layer, x, self._norm(output, layer.mlp_post_norm))

    def _per_layer_input(self, index: int, part: PerLayerInput, x: F32) -> F32:
        """What a layer adds to the stream x for its per-layer embeddings."""
        gated = activated(self._linear(x, part.gate), part.activation) * self._per_layer_inputs[:, index]
        return self._norm(self._linear(gated, part.up), part.norm)

    def _mixed(self, index: int, mixer: Mixer, x: F32) -> F32:
        if isinstance(mixer, ShortConv):
            return self._short_convolution(index, mixer, x)
        if isinstance(mixer, Mamba2):
            return self._mamba2(index, mixer, x)
        return self._attention(index, mixer, x) if isinstance(mixer, Attention) else self._delta_net(index, mixer, x)

    def _added(self, layer: Layer, x: F32, more: F32) -> F32:
        """The stream [T, hidden] with what its attention or its mlp adds to it."""
        scaled: F32 = more * np.float32(layer.residual_multiplier)
        return x + scaled

    def _attention(self, index: int, attention: Attention, x: F32) -> F32:
        if attention.mla is not None:
            return self._latent_attention(index, attention, attention.mla, x)
        q_norm, k_norm = (None, None) if attention.norm_after_rope else (attention.q_norm, attention.k_norm)
        q = self._heads(x, attention.q, attention.heads, q_norm)  # [H, T, D]
        k = v = np.empty((attention.kv_heads, 0, attention.head_dim), np.float32)  # of layers that make none
        if attention.kv_from is None:
            k = self._heads(x, attention.k, attention.kv_heads, k_norm)
            v = self._heads(x, attention.v, attention.kv_heads, attention.v_norm)
        context = self._attended(index, attention, q, k, v)
        if attention.gate is not None:
            share = sigmoid(self._linear(x, attention.gate))
            context = context * (np.repeat(share, attention.head_dim, axis=1) if attention.gates_heads else share)
        return self._linear(context, attention.o)

    def _latent_attention(self, index: int, attention: Attention, mla: MultiHeadLatent, x: F32) -> F32:
        """Products are made in the order in which matrices are stored."""
        parts = attention.q if mla.q is None else mla.q, mla.kv, mla.k
        query, small, shared = (self._linear(x, part) for part in parts)
        if mla.q is not None:
            query = self._linear(self._norm(query, mla.q_norm), attention.q)
        q = query.reshape(len(x), attention.heads, -1).transpose(1, 0, 2)
        small = self._norm(small, mla.kv_norm)
        k, v = (self._heads(small, part, attention.heads, None) for part in (attention.k, attention.v))
        k = np.concatenate([np.broadcast_to(shared, (attention.heads, *shared.shape)), k], axis=-1)
        v = np.pad(v, ((0, 0), (0, 0), (0, attention.head_dim - mla.value_dim)))
        context = self._attended(index, attention, q, k, v).reshape(len(x), attention.heads, -1)
        return self._linear(context[..., : mla.value_dim].reshape(len(x), -1), attention.o)

    def _attended(self, index: int, attention: Attention, q: F32, k: F32, v: F32) -> F32:
        """What the queries [H, T, D] find, [T, H * D]; keys and values [kv heads, T, D] are remembered."""
        number = self._weights.decoder.kv_number(index)
        past_key, past_value = self._kv[number]
        q, k = (self._rotated(x, attention.rope) for x in (q, k))
        if attention.norm_after_rope:
            q, k = self._norm(q, attention.q_norm), self._norm(k, attention.k_norm)
        if attention.temperature is not None:
            at = np.arange(self.position, self.position + q.shape[1])[:, None]
            q = q * temperature(attention.temperature, at)
        key = np.concatenate([past_key, k], axis=1)  # [kv heads, P + T, D]
        value = np.concatenate([past_value, v], axis=1)
        self._kv[number] = key, value
        shared = attention.heads // attention.kv_heads
        key, value = key.repeat(shared, axis=0), value.repeat(shared, axis=0)
        products = q @ key.transpose(0, 2, 1)  # [H, T, P + T]
        by = np.float32(np.sqrt(attention.head_dim) if attention.scale is None else 1 / attention.scale)
        scores = capped(products / by, attention.softcap)
        query_at = np.arange(self.position, self.position + q.shape[1])[:, None]
        key_at = np.arange(key.shape[1])[None, :]
        last_seen = self._last_seen if self._weights.decoder.sees_images_whole(attention) else None
        mask = key_at <= (query_at if last_seen is None else last_seen[:, None])
        if attention.window is not None:
            mask &= key_at > query_at - attention.window
        if attention.chunk is not None:
            mask &= key_at // attention.chunk == query_at // attention.chunk
        scores = np.where(mask, scores, -np.inf)
        if attention.sinks:
            sinks = self._weights.tensor(sinks_name(index))[:, None, None]
            scores = np.concatenate([scores, np.broadcast_to(sinks, (*scores.shape[:2], 1))], axis=-1)
        weights = softmax(scores)[..., : key.shape[1]]
        return (weights @ value).transpose(1, 0, 2).reshape(q.shape[1], -1)

    def _short_convolution(self, index: int, mixer: ShortConv, x: F32) -> F32:
        b, c, values = (self._linear(x, linear) for linear in (mixer.b, mixer.c, mixer.x))
        convolved = self._convolved(index, mixer.kernel, b * values, has_bias=bool(mixer.bias))
        return self._linear(c * convolved, mixer.o)

    def _delta_net(self, index: int, mixer: DeltaNet, x: F32) -> F32:
        weights, parts = self._weights, (mixer.q, mixer.k, mixer.v)
        entering = np.concatenate([self._linear(x, linear) for linear in parts], axis=1)
        passed = activated(self._convolved(index, mixer.kernel, entering, has_bias=False), "silu")
        q, k, v = np.split(passed, np.cumsum([mixer.q.rows, mixer.k.rows]), axis=1)
        shared = mixer.value_heads // mixer.key_heads
        q, k = (of_length_one(each.reshape(len(x), mixer.key_heads, -1)).repeat(shared, axis=1) for each in (q, k))
        beta = sigmoid(x @ weights.matrix(mixer.beta).T) * np.float32(2 if mixer.allow_neg_eigval else 1)
        log_decay, bias = (weights.tensor(decay_name(index, part)) for part in ("log_decay", "decay_bias"))
        decay = -np.exp(log_decay) * np.logaddexp(x @ weights.matrix(mixer.decay).T + bias, 0)
        by = np.float32(np.sqrt(mixer.key_dim))
        output = self._recurred(index, q / by, k, v.reshape(len(x), mixer.value_heads, -1), np.exp(decay), beta)
        gate = activated(self._linear(x, mixer.z), "silu")
        return self._linear(self._norm(output, mixer.norm).reshape(len(x), -1) * gate, mixer.o)

    def _mamba2(self, index: int, mixer: Mamba2, x: F32) -> F32:
        weights, parts = self._weights, (mixer.x, mixer.b, mixer.c)
        entering = np.concatenate([self._linear(x, linear) for linear in parts], axis=1)
        passed = activated(self._convolved(index, mixer.kernel, entering, has_bias=bool(mixer.bias)), "silu")
        values, b, c = np.split(passed, np.cumsum([mixer.x.rows, mixer.b.rows]), axis=1)
        shared = mixer.heads // mixer.groups
        b, c = (each.reshape(len(x), mixer.groups, -1).repeat(shared, axis=1) for each in (b, c))
        stored = ("log_decay", "step_bias", "skip")
        log_decay, bias, skip = (weights.tensor(decay_name(index, part)) for part in stored)
        step = np.logaddexp(x @ weights.matrix(mixer.step).T + bias, 0).astype(np.float32)
        values = values.reshape(len(x), mixer.heads, -1)
        decay = np.exp(-np.exp(log_decay) * step)
        output = self._recurred(index, c, b, values, decay, step, is_delta=False) + skip[:, None] * values
        gate = activated(self._linear(x, mixer.z), "silu")
        by_group = (output.reshape(len(x), -1) * gate).reshape(len(x), mixer.groups, -1).transpose(1, 0, 2)
        return self._linear(self._norm(by_group, mixer.norm).transpose(1, 0, 2).reshape(len(x), -1), mixer.o)

    def _recurred(
        self, index: int, q: F32, k: F32, v: F32, decay_factor: F32, beta: F32, *, is_delta: bool = True
    ) -> F32:
        """What each head finds, [T, H, value size]. q, k, v: [T, H, size]; decay_factor (of the state), beta: [T, H].

        is_delta: by the delta rule, what keys find already is not added once more.
        """
        name = f"recurrent.{index}"
        state, output = self._states[name], np.empty_like(v)
        for at in range(len(v)):
            state = state * decay_factor[at, :, None, None]
            prediction = (k[at, :, None] @ state)[:, 0] if is_delta else np.float32(0)
            new = beta[at, :, None] * (v[at] - prediction)
            state = state + k[at, :, :, None] * new[:, None]
            output[at] = (q[at, :, None] @ state)[:, 0]
        self._states[name] = state
        return output

    def _convolved(self, index: int, kernel: int, x: F32, *, has_bias: bool) -> F32:
        """Each value of x [T, values] with those of the tokens before it, of which the newest are remembered."""
        name = f"conv.{index}"
        inputs = np.concatenate([self._states[name], x])
        self._states[name] = inputs[len(x) :]
        weight = self._weights.tensor(convolution_name(index, "weight")).reshape(-1, kernel)
        total = np.zeros_like(x)
        for tap in range(kernel):
            total += inputs[tap : tap + len(x)] * weight[:, tap]
        return total + self._weights.tensor(convolution_name(index, "bias")) if has_bias else total

    def _heads(self, x: F32, linear: Linear, heads: int, norm: Norm | None) -> F32:
        product = self._linear(x, linear)
        if norm is not None and norm.size == linear.rows:  # over all heads together
            product, norm = self._norm(product, norm), None
        return self._norm(product.reshape(len(x), heads, -1).transpose(1, 0, 2), norm)

    def _rotated(self, x: F32, rope: int | None) -> F32:
        """Dimension i of the first half is rotated with dimension i of the second half."""
        if rope is None:
            return x
        cos, sin = self._rope_rows(rope, x.shape[1])
        rotated = self._weights.decoder.ropes[rope].rotary_dim
        first, second, rest = np.split(x, [rotated // 2, rotated], axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def _rope_rows(self, rope: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin of the next tokens, [count, rotated / 2] each."""
        here = slice(self.position, self.position + count)
        cos, sin = (self._weights.tensor(rope_name(rope, part))[here] for part in ("cos", "sin"))
        return cos, sin

    def _mlp(self, mlp: Mlp, x: F32) -> F32:
        bent = self._linear(x, mlp.up if mlp.gate is None else mlp.gate)
        bent = np.minimum(bent, np.float32(mlp.swiglu_limit)) if mlp.swiglu_limit else bent
        bent = beyond(bent, mlp.sparsity_cutoff) if mlp.sparsity_cutoff else bent
        if mlp.xielu_alphas:
            active = xielu(bent, *(self._weights.tensor(alpha_name(mlp, part)) for part in ("alpha_p", "alpha_n")))
        else:
            active = activated(bent, mlp.activation, mlp.swiglu_alpha)
        if mlp.gate is not None:
            up = self._linear(x, mlp.up)
            up = np.clip(up, np.float32(-mlp.swiglu_limit), np.float32(mlp.swiglu_limit)) if mlp.swiglu_limit else up
            active = active * (up + np.float32(mlp.up_offset) if mlp.up_offset else up)
        return self._linear(active, mlp.down)

    def _moe(self, index: int, moe: Moe, x: F32) -> F32:
        correction = self._weights.tensor(score_correction_name(index)) if moe.score_correction_bias else None
        scales = self._weights.tensor(expert_scales_name(index)) if moe.expert_scales else None
        stream, norms = x, moe.norms
        router_input = x if norms is None else self._norm(x, norms.router)
        weights = expert_weights(moe, self._linear(router_input, moe.router), correction, scales)  # [T, experts]
        x = x if norms is None else self._norm(x, norms.experts)
        total = np.zeros_like(x)
        for expert, mlp in enumerate(moe.experts):
            of = np.flatnonzero(weights[:, expert])
            if len(of):
                weight = weights[of, expert, None]
                total[of] += self._mlp(mlp, x[of] * weight) if moe.scales_input else self._mlp(mlp, x[of]) * weight
        if norms is not None:
            assert moe.shared is not None
            shared = self._norm(self._mlp(moe.shared, self._norm(stream, norms.shared)), norms.shared_post)
            return self._norm(total, norms.experts_post) + shared
        if moe.shared is not None:
            output = self._mlp(moe.shared, x)
            total += output if moe.shared_gate is None else output * sigmoid(self._linear(x, moe.shared_gate))
        if moe.bias:
            total += self._weights.tensor(experts_bias_name(index))
        return total

    def _linear(self, x: F32, linear: Linear) -> F32:
        x = self._clipped(x, linear, "input")
        product = x @ self._weights.matrix(linear).T
        if self._adapter is not None and linear.name in self._adapter.factors:
            a, b = self._adapter.factors[linear.name]
            product = product + x @ a @ b
        product = product + self._weights.tensor(f"{linear.name}.bias") if linear.bias else product
        return self._clipped(product, linear, "output")

    def _clipped(self, x: F32, linear: Linear, side: str) -> F32:
        """What a clipped linear reads or makes. side: "input" or "output"."""
        if not linear.clip:
            return x
        return np.clip(x, *(self._weights.tensor(f"{linear.name}.{side}_{end}")[0] for end in ("min", "max")))

    def _norm(self, x: F32, norm: Norm | None) -> F32:
        """x [..., size] normed; with weights of their own for heads, x is [heads, T, size]."""
        if norm is None:
            return x
        if norm.kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(norm.epsilon))
        shape = (norm.groups, 1, norm.size) if norm.groups > 1 else (norm.size,)
        normed = x / scale * self._weights.tensor(f"{norm.name}.weight").reshape(shape)
        return normed + self._weights.tensor(f"{norm.name}.bias").reshape(shape) if norm.bias else normed

    def _scaled_logits(self, logits: F32) -> F32:
        """The logits that the head's products stand for."""
        decoder = self._weights.decoder
        return capped(logits * np.float32(decoder.logits_multiplier), decoder.logits_softcap)
