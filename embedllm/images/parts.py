"""Parts of messages that are images: which are, and what they have. Loaded for every prompt, so without the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from embedllm.text.chat_template import Message

_KINDS = ("image", "image_url", "input_image")
_NAMES = ("image", "image_url", "url")  # under which a part may have its image


def has_images(messages: Sequence[Message]) -> bool:
    """Whether a part of a message is an image."""
    return any(is_image_part(part) for message in messages for part in _parts(message))


def is_image_part(part: object) -> TypeGuard[Mapping[str, object]]:
    """Whether a part of a content is an image, as OpenAI or transformers have it."""
    return isinstance(part, Mapping) and part.get("type") in _KINDS


def image_of(part: Mapping[str, object]) -> object:
    """What a part has as its image. Raises ValueError where there is none, or more than one."""
    images = [part[name] for name in _NAMES if part.get(name) is not None]
    if len(images) == 1 and isinstance(images[0], Mapping):  # {"image_url": {"url": ...}}
        images = [images[0]["url"]] if images[0].get("url") is not None else []
    if len(images) != 1:
        raise ValueError(
            f"a part of the type {part.get('type')!r} has {len(images)} images, under the names {sorted(part)}; "
            "expected one: {'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,...'}}, or {'type': "
            "'image', 'image': bytes, a pathlib.Path, a Pillow image or an array}."
        )
    return images[0]


def _parts(message: object) -> Sequence[object]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list | tuple) else ()
