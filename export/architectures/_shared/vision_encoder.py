"""What the configs of vision encoders with 2-D RoPE have in common."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.parts import Sizes
from embedllm.export.architectures.config import Config


def check_encoder(config: Config, sizes: Sizes, **expected: int) -> None:
    """Raises UnsupportedModel for other numbers than these of a `vision_config`, and for heads that are not rotated."""
    for key, number in expected.items():
        if config.integer(key) != number:
            raise UnsupportedModel(f"{key} is {config.integer(key)} in vision_config; expected {number}.")
    if sizes.head_dim % 4:
        raise UnsupportedModel(f"heads of the vision encoder have {sizes.head_dim} values; expected a multiple of 4.")


def rope_base(config: Config, usual: float = 10_000.0) -> float:
    section = config.section("rope_parameters")
    return usual if section is None else section.number("rope_theta", usual, above=1)
