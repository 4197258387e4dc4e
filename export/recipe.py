"""What an export can choose: the quantization methods, as a table, and the recipe."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from embedllm.errors import ExportError
from embedllm.package.architecture import Decoder

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way from weights to integers and scales."""

    search: bool = True  # MSE-optimal scales of 4 bits; otherwise min-max scales
    weighs: bool = False  # errors are weighted by the mean square of the inputs of a column (imatrix)
    scales: bool = False  # columns with large inputs are scaled up first, and what comes before them down (AWQ)
    compensates: bool = False  # later columns compensate the rounding errors of earlier ones (GPTQ)
    bits: tuple[int, ...] = (4, 8)  # of matrices that it is for

    @property
    def reads(self) -> bool:
        """Whether it has to know the inputs of matrices, from a text."""
        return self.weighs or self.scales or self.compensates


METHODS = {
    "search": Method(),
    "nearest": Method(search=False),
    "weighted": Method(weighs=True, bits=(4,)),
    "awq": Method(weighs=True, scales=True),
    "gptq": Method(compensates=True),
    "awq+gptq": Method(scales=True, compensates=True),
}


def check_model(name: str, decoder: Decoder, *, has_budget: bool) -> None:
    """Raises ExportError for a model without calibration support. name, has_budget: of check_method()."""
    reads = METHODS[name].reads
    if reads and decoder.is_mixture:
        raise ExportError(
            f"the method '{name}' is not for mixtures of experts such as '{decoder.model_type}': an expert sees only "
            "the tokens that are routed to it, maybe none. Use the method 'search'."
        )
    if (reads or has_budget) and _is_apart(decoder):
        what = f"the method '{name}'" if reads else "a size or mean bits"
        raise ExportError(
            f"{what} is not for '{decoder.model_type}', whose layers cannot be run over a text one by one: they "
            "have per-layer embeddings, shared KV or value norms. Use the method "
            "'search', without a size."
        )


def check_method(name: str, bits: Collection[int], *, has_budget: bool, has_text: bool, has_importance: bool) -> bool:
    """Whether an export reads a text: one that is given, or drawn by the model.

    name: of the method. bits: of all matrices. has_budget: they are chosen by a size or mean bits, which takes a text.
    has_text, has_importance: whether they are given.
    Raises ExportError where a method has nothing to do, or what is given nobody to read it.
    """
    method = METHODS[name]
    if method.reads and not set(bits) & set(method.bits):
        found, wanted = (" or ".join(map(str, sorted(set(some)))) for some in (bits, method.bits))
        raise ExportError(
            f"at {found} bits there is no matrix of {wanted} bits, which the method '{name}' is for. Leave out the "
            "method and what it reads, or choose fewer bits."
        )
    if has_importance and name != "weighted":
        raise ExportError(f"an importance matrix is for the method 'weighted', not for '{name}'. Leave one out.")
    reads = has_budget or (method.reads and not has_importance)
    if has_text and not reads:
        if has_importance:
            raise ExportError("a calibration text and an importance matrix say the same. Leave one out.")
        readers = ", ".join(f"'{other}'" for other in METHODS if METHODS[other].reads)
        raise ExportError(
            f"a calibration text is for the methods {readers}, not for '{name}' without a size. Leave one out, or give "
            "a size."
        )
    return reads


def _is_apart(decoder: Decoder) -> bool:
    return decoder.per_layer_embedding is not None or any(a.kv_from is not None or a.v_norm for a in decoder.attentions)


def incompatible_option(recipe: Recipe, options: Mapping[str, object]) -> str:
    """The first option beyond rounding to a number of bits, in words; empty when there is none.

    options: of convert(), by their names; None and False: not given.
    """
    asked = [name for name, value in options.items() if value not in (None, False)]
    if METHODS[recipe.method].reads:
        asked.append(f"the method '{recipe.method}'")
    asked += [f"recipe.{name}" for name in ("size", "mean_bits", "rotate") if getattr(recipe, name)]
    return asked[0] if asked else ""


_BITS = 4  # unless a recipe says otherwise
_REST = 16  # of what a source holds as floats beside pre-quantized matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the user of an export can choose."""

    # of the layers' matrices: 4, 8, 16 or 32. None: 4; but what the source holds quantized is stored as it is
    bits: int | None = None
    group_size: int = 32  # values that share a scale
    symmetric: bool = True
    # "nearest": round-to-nearest, min-max scales; "search": MSE-optimal scales; with calibration text "weighted"
    # (imatrix), "awq", "gptq", "awq+gptq": METHODS
    method: str = "search"
    head_bits: int | None = None  # None: as `bits`
    embedding_bits: int | None = None  # None: as the head, or as the source; a tied table always is the head
    context: int | None = None  # tokens; None: as the model
    exact: bool = False  # float activations in every product: slower, see docs/numerics.md
    rotate: bool = False  # Hadamard-rotate the value heads, undone by o: docs/numerics.md#rotation
    # Of these one, or none: 8 bits in place of 4 where they gain most on a text (docs/numerics.md#mixed-bits)
    size: int | None = None  # bytes of the weights file, at most
    mean_bits: float | None = None  # the same, by weight: 8 * bytes over the number of weights

    @property
    def body_bits(self) -> int:
        """Of the layers' matrices where they are rounded."""
        return _BITS if self.bits is None else self.bits

    @property
    def of_floats(self) -> Recipe:
        """The same for a source that holds nothing quantized."""
        return replace(self, bits=self.body_bits)
