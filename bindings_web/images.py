"""Images of messages with the engine "python": JavaScript decodes and encodes them, Python writes the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, cast

from embedllm.backends.browser.engine import WebEngine
from embedllm.backends.images import ImageFeatures, image_ids
from embedllm.images.parts import is_image_part
from embedllm.images.sources import ImageSource

if TYPE_CHECKING:
    from embedllm.generation.request import Request
    from embedllm.images.prompt import PreparedImage
    from embedllm.model.model import Model
    from embedllm.text.chat_template import Message
    from embedllm.types import F32, JSON

_KEY_DIGITS = 9  # of the hash of a file, which ids have in JavaScript: bindings_web/src/images/features.js


@dataclass(frozen=True, eq=False, kw_only=True)
class PageImage:
    """An image of a prompt, whose pixels JavaScript has (see ImageInput, embedllm/backends/base.py)."""

    sha256: str
    tokens: int
    grid: tuple[int, int] | None

    @property
    def pixel_values(self) -> list[F32]:
        return []


def encode_in_page(model: Model) -> None:
    """Lets a model that sees be fed ids of images, which JavaScript knows."""
    decoder, engine = model.package.decoder, cast("WebEngine", model.runner.engine)
    if decoder.vision is not None:
        engine.images = ImageFeatures(_no_encoder, bidirectional=decoder.images_are_bidirectional)


def opened_images(messages: Sequence[Message], images: Sequence[Mapping[str, JSON]]) -> list[Message]:
    """Messages with an ImageSource in each part that is an image. images: width, height and digest of each."""
    rest = iter(images)

    def opened(part: object) -> object:
        if not is_image_part(part):
            return part
        fields = cast("Mapping[str, int | str]", next(rest))
        source = ImageSource(width=int(fields["width"]), height=int(fields["height"]), digest=str(fields["digest"]),
                             decode=_no_pixels)  # fmt: skip
        return {**part, "image": source}

    prompt = []
    for message in messages:
        content = message.get("content")
        prompt.append({**message, "content": [*map(opened, content)]} if isinstance(content, list) else message)
    return cast("list[Message]", prompt)


def with_page_ids(request: Request) -> Request:
    """The request with the ids that JavaScript has for its images."""
    prepared = [cast("PreparedImage", image) for image in request.images]
    images = tuple(
        PageImage(sha256=each.source.digest[:_KEY_DIGITS], tokens=each.tokens, grid=each.grid) for each in prepared
    )
    ids = {old: new for each, image in zip(prepared, images, strict=True)
           for old, new in zip(image_ids(each), image_ids(image), strict=True)}  # fmt: skip
    return replace(request, prompt=[ids.get(token, token) for token in request.prompt], images=images)


def _no_pixels() -> NoReturn:
    raise AssertionError("JavaScript has the pixels of this image")


def _no_encoder() -> NoReturn:
    raise AssertionError("JavaScript encodes the images of a page")
