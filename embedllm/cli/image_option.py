"""--image of `run` and `chat`, and messages with the files that were named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from embedllm.files.home_path import expanded
from embedllm.images.sources import data_url

if TYPE_CHECKING:
    from embedllm.text.chat_template import Message
    from embedllm.types import JSON

C = TypeVar("C", bound=Callable[..., object])


def image_option(command: C) -> C:
    """--image of a command, which it gets as `images`."""
    return click.option("--image", "images", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
                        help="An image in front of the text, for models that see: JPEG, PNG, WebP, GIF or BMP. "
                        "Repeatable.")(command)  # fmt: skip


def image_parts(files: Sequence[Path]) -> list[JSON]:
    """The files as parts of a message. Raises ValueError for what is no image, OSError for what cannot be read."""
    return [{"type": "image_url", "image_url": {"url": data_url(expanded(file))}} for file in files]


def user_message(text: str, images: Sequence[JSON]) -> Message:
    """What the user says, behind the images."""
    content: JSON = [*images, {"type": "text", "text": text}] if images else text
    return {"role": "user", "content": content}
