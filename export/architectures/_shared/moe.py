"""What families with a mixture of experts share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.parts import Parts, activation
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.weights import Linear, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """How many a family has, of which size, and where its checkpoints have them."""

    count: int
    top_k: int  # for a token
    inner: int
    router: str = "mlp.gate"
    place: str = "mlp.experts"
    gate: str = "gate_proj"  # empty: they have none
    up: str = "up_proj"
    down: str = "down_proj"
    activation_key: str = "hidden_act"
    activation: str = "silu"  # what a config that does not say it means


def mixture(parts: Parts, experts: Experts, *, scoring_func: str = "softmax", norm_topk: bool = False) -> Moe:
    """Without a shared expert. scoring_func, norm_topk: of Moe. Raises UnsupportedModel for a larger top_k."""
    if experts.top_k > experts.count:
        raise UnsupportedModel(f"{experts.top_k} experts of a token; expected at most all {experts.count} of a layer.")
    hidden = parts.sizes.hidden
    return Moe(
        router=parts.linear("mlp.router", experts.router, experts.count, hidden),
        experts=tuple(
            gated(parts, f"mlp.experts.{number}", f"{experts.place}.{number}", experts)
            for number in range(experts.count)
        ),
        top_k=experts.top_k,
        scoring_func=scoring_func,
        norm_topk=norm_topk,
    )


def gated(parts: Parts, part: str, where: str, experts: Experts, *, bias: bool = False) -> Mlp:
    """One expert."""
    hidden, inner = parts.sizes.hidden, experts.inner
    return Mlp(
        gate=parts.linear(f"{part}.gate", f"{where}.{experts.gate}", inner, hidden, bias=bias)
        if experts.gate
        else None,
        up=parts.linear(f"{part}.up", f"{where}.{experts.up}", inner, hidden, bias=bias),
        down=parts.linear(f"{part}.down", f"{where}.{experts.down}", hidden, inner, bias=bias),
        activation=activation(parts.config, experts.activation_key, experts.activation),
    )


def stacked(parts: Parts, moe: Moe, experts: Experts) -> Moe:
    """The same of experts whose gates and ups are one tensor, 'gate_up_proj', and whose downs are 'down_proj'."""
    hidden, inner = parts.sizes.hidden, experts.inner

    def placed(linear: Linear, where: str, start: int, each: int) -> Linear:
        """each: rows of an expert in the tensor."""
        origin = Origin(rows=each * experts.count, start=start)
        return replace(linear, source=f"{parts.source}.{experts.place}.{where}", origin=origin)

    def one(number: int, mlp: Mlp) -> Mlp:
        assert mlp.gate is not None, "experts are gated"
        first = 2 * inner * number
        return replace(
            mlp,
            gate=placed(mlp.gate, "gate_up_proj", first, 2 * inner),
            up=placed(mlp.up, "gate_up_proj", first + inner, 2 * inner),
            down=placed(mlp.down, "down_proj", hidden * number, hidden),
        )

    return replace(moe, experts=tuple(one(number, mlp) for number, mlp in enumerate(moe.experts)))


def experts_of_layer(config: Config, default: int) -> int:
    """'num_experts', or 'num_local_experts': transformers 5 writes the one for the other."""
    return config.integer("num_experts", config.integer("num_local_experts", default))


def is_sparse(config: Config, index: int) -> bool:
    """Whether a layer of a Qwen has experts: 'decoder_sparse_step' and 'mlp_only_layers' say so."""
    only = config.integers("mlp_only_layers") or []
    return index not in only and (index + 1) % config.integer("decoder_sparse_step", 1) == 0


def is_dense(config: Config, index: int, default: int = 1) -> bool:
    """Whether a layer has no experts, by 'mlp_layer_types', or else by 'first_k_dense_replace'.

    default: what a config without both means by the latter.
    """
    kinds, layers = config.texts("mlp_layer_types"), config.integer("num_hidden_layers")
    if kinds is None:
        return index < config.integer("first_k_dense_replace", default, least=0)
    if len(kinds) != layers:
        raise ExportError(f"config.json: 'mlp_layer_types' has {len(kinds)} entries; expected {layers}, one a layer.")
    return kinds[index] != "sparse"


def grouped(config: Config, moe: Moe) -> Moe:
    """The same, chosen among the best groups. Raises UnsupportedModel for groups that are not alike."""
    count, groups, used = len(moe.experts), config.integer("n_group", 1), config.integer("topk_group", 1)
    if count % groups or used > groups:
        raise UnsupportedModel(
            f"{count} experts in {groups} groups ('n_group'), of which {used} take part ('topk_group'); "
            "expected groups of equal size, and at most all of them."
        )
    if moe.top_k > used * (count // groups):
        raise UnsupportedModel(f"{moe.top_k} experts of a token; expected at most the {used * (count // groups)} of "
                               f"{used} groups ('topk_group').")  # fmt: skip
    return replace(moe, groups=groups, top_k_groups=used)


def corrected(parts: Parts, index: int) -> Moe | None:
    """DeepSeek-V3's kind, by its keys: corrected sigmoids choose, plain ones weigh; None for a dense layer."""
    config = parts.config
    if index < config.integer("first_k_dense_replace", 0, least=0):
        return None
    experts = Experts(
        count=config.integer("n_routed_experts", config.integer("num_local_experts", 0, least=0)),
        top_k=config.integer("num_experts_per_tok"),
        inner=config.integer("moe_intermediate_size"),
    )
    moe = mixture(parts, experts, scoring_func="sigmoid", norm_topk=config.flag("norm_topk_prob", False))
    shared = replace(experts, inner=experts.inner * config.integer("n_shared_experts", 1))
    return replace(
        grouped(config, moe),
        score_correction_bias=f"{parts.source}.mlp.gate.e_score_correction_bias",
        scale=config.number("routed_scaling_factor", 1.0),
        shared=gated(parts, "mlp.shared", "mlp.shared_experts", shared),
    )
