"""Images in messages: parts to sources, and a rendered prompt to one with a token for each row of their features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from embedllm.errors import ContextFull, TemplateError
from embedllm.images.limits import MAX_IMAGES
from embedllm.images.parts import has_images, image_of, is_image_part
from embedllm.images.processors import Processor
from embedllm.images.sources import ImageSource, data_url, open_image
from embedllm.text.content_marks import RenderedPrompt

if TYPE_CHECKING:
    from embedllm.text.chat_template import Message
    from embedllm.types import F32


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image of a prompt (see ImageInput, embedllm/backends/base.py). Nothing is decoded until pixels are read."""

    source: ImageSource
    processor: Processor

    @property
    def sha256(self) -> str:
        return sha256(f"{self.source.digest} {self.processor}".encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return self.processor.token_count(self.source.width, self.source.height)

    @property
    def grid(self) -> tuple[int, int] | None:
        return self.processor.grid(self.source.width, self.source.height)

    @property
    def pixel_values(self) -> F32 | list[F32]:
        return self.processor.pixel_values(self.source.decode())


def split_images(messages: Sequence[Message]) -> tuple[list[Message], list[ImageSource]]:
    """Messages with {"type": "image"} in place of each image, as templates take them, and the images in their order.

    Raises ValueError, which names the message, for what is no image, and what open_image() raises.
    """
    shown: list[Message] = []
    sources: list[ImageSource] = []
    for place, message in enumerate(messages):
        if not has_images([message]):
            shown.append(message)
            continue
        content = message["content"]
        parts = []
        for part in content if isinstance(content, list | tuple) else ():
            if is_image_part(part):
                if len(sources) == MAX_IMAGES:
                    raise ValueError(f"the messages have more than {MAX_IMAGES} images; send fewer.")
                sources.append(_opened(part, place))
                parts.append({"type": "image"})
            else:
                parts.append(part)
        shown.append({**message, "content": parts})
    return shown, sources


def check_count(images: Sequence[PreparedImage], limit: int | None) -> None:
    """Raises ContextFull for images that alone have more tokens than the limit, before a prompt is made of them."""
    tokens = sum(image.tokens for image in images)
    if limit is not None and tokens > limit:
        raise ContextFull(
            f"the {len(images)} images of the prompt have {tokens} tokens; {limit} can be held together with the "
            "reply. Send fewer or smaller images.",
            tokens=tokens,
            limit=limit,
        )


def portable(message: Message) -> Message:
    """A message whose images are data URLs, which JSON can hold: bytes, files, arrays and Pillow images become some.

    Raises what split_images() raises.
    """
    if not has_images([message]):
        return message
    content = message["content"]
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(image_of(part))}} if is_image_part(part) else part
        for part in (content if isinstance(content, list | tuple) else ())
    ]
    return {**message, "content": parts}


def expand(prompt: RenderedPrompt, processor: Processor, sources: Sequence[ImageSource]) -> RenderedPrompt:
    """The prompt with the tokens of the images in place of the template's placeholders.

    A placeholder's text in a message is only text. Raises TemplateError where the template writes more or less of them.
    """
    mark, text = processor.placeholder, prompt.text
    places = [place for place in _occurrences(text, mark) if place not in prompt.literal]
    if len(places) != len(sources):
        raise TemplateError(
            f"the chat template writes {len(places)} placeholders '{mark}' for {len(sources)} images; it has to write "
            "one for each part of the type 'image'."
        )
    pieces: list[str] = []
    literal: set[int] = set()
    done = length = 0
    for place, source in [*zip(places, sources, strict=True), (len(text), None)]:
        literal.update(at - done + length for at in prompt.literal if done <= at < place)
        pieces.append(text[done:place])
        length += place - done
        done = place
        if source is not None:
            pieces.append(processor.prompt_text(source.width, source.height))
            length += len(pieces[-1])
            done += len(mark)
    return RenderedPrompt("".join(pieces), frozenset(literal))


def _opened(part: Mapping[str, object], place: int) -> ImageSource:
    try:
        return open_image(image_of(part))
    except (ValueError, TypeError) as error:
        raise ValueError(f"messages[{place}]: {error}") from error


def _occurrences(text: str, mark: str) -> Iterator[int]:
    at = text.find(mark)
    while at >= 0:
        yield at
        at = text.find(mark, at + len(mark))
