"""The few types that every part shares. Standard library only: the rule runs in a browser without numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32: TypeAlias = NDArray[np.float32]
    F16: TypeAlias = NDArray[np.float16]
    U8: TypeAlias = NDArray[np.uint8]
    I64: TypeAlias = NDArray[np.int64]

# One bit a token, that of token t in word t // 32 at place t % 32; words of 32 bits, little-endian. What holds them
# goes with where the row is: any buffer (bytes, array, numpy) for one in this memory, a typed array for JavaScript's.
TokenBits: TypeAlias = object


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best tokens of one step, highest logit first; equal logits in the order of their ids."""

    tokens: Sequence[int]
    logits: Sequence[float]


class Logits(Protocol):
    """The scores of the next token, wherever they lie: an array here, a GPU buffer in a browser.

    The sampler asks for the few numbers that it needs, so a row of the vocabulary's size need not cross a bus.
    Valid until the session that gave it is fed again.
    """

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary, V."""
        ...

    def values(self, tokens: Sequence[int]) -> list[float]:
        """The logits of these tokens."""
        ...

    def penalized(
        self,
        tokens: Sequence[int],
        *,
        biases: Sequence[float],
        divisors: Sequence[float],
        subtracted: Sequence[float],
    ) -> Logits:
        """A copy in which these tokens, each named once, have changed logits.

        logit + bias; that over the divisor if positive and times it if not; less what is subtracted.
        Source of the middle step: Keskar et al. 2019, "CTRL", as transformers has it for negative logits.
        """
        ...

    def masked(self, bits: TokenBits) -> Logits:
        """A copy in which the tokens whose bit is not set have -inf, and those past the end of `bits`."""
        ...

    def top(self, count: int) -> Candidates:
        """The `count` highest logits, exactly; all V when count is larger."""
        ...

    def logsumexp(self, temperature: float = 1.0) -> float:
        """log(sum(exp(logit / temperature))) over the whole vocabulary."""
        ...

    def draw(self, temperature: float, uniform: float) -> int:
        """The token at which the cumulative softmax(logits / temperature), in the order of ids, passes `uniform`.

        uniform: in [0, 1).
        """
        ...

    def mean(self, temperature: float) -> float:
        """The expected logit under softmax(logits / temperature).

        A token's surprise is as far from the entropy as its logit is from this, in units of the temperature.
        """
        ...

    def deviation(self) -> float:
        """The standard deviation of the logits above -inf: sqrt(mean((logit - mean) ** 2))."""
        ...

    def mass_nearer(self, token: int, centre: float, *, temperature: float) -> float:
        """The probability of the tokens that go before `token` when those with logits nearest to `centre` go first.

        At the same distance the higher logit goes first, at the same logit the lower id. With centre=inf that is
        the order of `top`. So whether a token belongs to a nucleus or a typical set is one sum over the row, whatever
        the size of the set.
        """
        ...


JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"
