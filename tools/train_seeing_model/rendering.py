"""Pixels of many scenes at once, by torch: sprites are added onto a canvas, which is then warped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tools.train_seeing_model.scenes import SIDE, Scene


class Renderer:
    """Holds the sprites on a device."""

    def __init__(self, file: Path, device: torch.device) -> None:
        arrays = np.load(file)
        self._banks = {name: torch.from_numpy(arrays[name]).to(device) for name in ("shapes", "glyphs")}

    def pictures(self, batch: dict[str, Tensor]) -> Tensor:
        """[B, 3, SIDE, SIDE] from 0 to 1, in steps of 1/255 as a file has them.

        batch: "shapes" and "glyphs" [n, 7]: picture, sprite, left, top, red, green, blue; "backdrop" [B, 2, 3];
        "gradient", "noise" [B]; "theta" [B, 6].
        """
        backdrop = batch["backdrop"]
        count, device = len(backdrop), backdrop.device
        canvas = torch.zeros(count * SIDE * SIDE, 4, device=device)
        for name, bank in self._banks.items():
            _place(canvas, bank, batch[name])
        canvas = canvas.view(count, SIDE, SIDE, 4).permute(0, 3, 1, 2)
        alpha = canvas[:, 3:].clamp(max=1)
        image = _gradient(backdrop, batch["gradient"]) * (1 - alpha) + canvas[:, :3]
        grid = functional.affine_grid(batch["theta"].view(count, 2, 3), [count, 3, SIDE, SIDE], align_corners=False)
        image = functional.grid_sample(image.clamp(0, 1), grid, padding_mode="border", align_corners=False)
        image = image + torch.randn_like(image) * batch["noise"].view(count, 1, 1, 1)
        return (image.clamp(0, 1) * 255).round() / 255


def scene_tensors(scenes: list[Scene]) -> dict[str, Tensor]:
    """What Renderer.pictures takes."""

    def rows(name: str) -> Tensor:
        found = [(at, *row) for at, scene in enumerate(scenes) for row in getattr(scene, name)]
        return torch.tensor(found, dtype=torch.float32).view(-1, 7)

    return {
        "shapes": rows("shapes"),
        "glyphs": rows("glyphs"),
        "backdrop": torch.tensor([scene.backdrop for scene in scenes], dtype=torch.float32),
        "gradient": torch.tensor([scene.gradient for scene in scenes], dtype=torch.float32),
        "theta": torch.tensor([scene.theta for scene in scenes], dtype=torch.float32),
        "noise": torch.tensor([scene.noise for scene in scenes], dtype=torch.float32),
    }


def normalized(pictures: Tensor) -> Tensor:
    """As the image processor has them: mean and deviation 0.5."""
    return pictures * 2 - 1


def _place(canvas: Tensor, bank: Tensor, rows: Tensor) -> None:
    """Adds the colours of sprites, times their masks, and the masks."""
    steps = torch.arange(bank.shape[-1], device=canvas.device)
    whole = rows[:, :4].long()
    y, x = whole[:, 3, None] + steps, whole[:, 2, None] + steps  # [n, S]
    is_inside = ((y >= 0) & (y < SIDE))[:, :, None] & ((x >= 0) & (x < SIDE))[:, None, :]
    places = (whole[:, :1] * SIDE + y.clamp(0, SIDE - 1))[:, :, None] * SIDE + x.clamp(0, SIDE - 1)[:, None, :]
    mask = bank[whole[:, 1]].float().div(255) * is_inside
    colours = functional.pad(rows[:, 4:7], (0, 1), value=1.0)
    canvas.index_add_(0, places.flatten(), (mask[..., None] * colours[:, None, None, :]).view(-1, 4))


def _gradient(backdrop: Tensor, direction: Tensor) -> Tensor:
    """[B, 3, SIDE, SIDE], from one colour to the other across the picture."""
    line = torch.linspace(-0.5, 0.5, SIDE, device=backdrop.device)
    cos, sin = direction.cos().view(-1, 1, 1), direction.sin().view(-1, 1, 1)
    share = ((line * cos + line[:, None] * sin) * 0.7 + 0.5).clamp(0, 1)[:, None]
    first, second = backdrop[:, 0, :, None, None], backdrop[:, 1, :, None, None]
    return first * (1 - share) + second * share
