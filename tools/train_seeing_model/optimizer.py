"""Muon: momentum whose matrices are made orthogonal. Source: Jordan et al. 2024, with its Newton-Schulz factors."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


class Muon:
    """Of matrices only; those of one shape are computed together."""

    def __init__(
        self, parameters: list[nn.Parameter], *, rate: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        self._rate, self._momentum, self._decay = rate, momentum, decay
        groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for one in parameters:
            groups[one.shape].append(one)
        self._groups = [(group, torch.zeros_like(torch.stack(list(group)))) for group in groups.values()]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """scale: of the learning rate."""
        rate = self._rate * scale
        for group, average in self._groups:
            gradients = torch.stack([one.grad for one in group if one.grad is not None])
            average.lerp_(gradients, 1 - self._momentum)
            update = _orthogonal(gradients.lerp(average, self._momentum))
            rows, columns = update.shape[1:]
            update = update.float() * (rate * max(1.0, rows / columns) ** 0.5)
            for one, change in zip(group, update, strict=True):
                one.mul_(1 - rate * self._decay).sub_(change)


def _orthogonal(matrices: Tensor) -> Tensor:
    """Near U V^T of each U S V^T."""
    x = matrices.bfloat16()
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if is_tall else x
