"""Images in prompts: ids that stand for their features, and the features, each computed once.

A prompt has, in the place of each placeholder token of an image, an id that no vocabulary has: it says of which image,
by the hash of that, and which row of its features. So whatever compares prompts tells images apart: a sequence's common
prefix, the prefix cache, its files. SGLang pads prompts in the same way (schedule_batch.py, pad_input_ids).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from embedllm.backends.base import Interrupted, Unsupported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedllm.backends.base import ImageInput, VisionEncoder
    from embedllm.package.architecture.vision import Vision
    from embedllm.types import F32

FIRST_ID = 1 << 62  # of those that stand for images; an int64 holds all of them
MAX_TOKENS = 1 << 16  # of one image
IMAGE_IS_GONE = "the image of a part of this prompt is no longer there; give the prompt with its images."
TAKES_NO_IMAGES = "this session takes no images: its model, or its device, has no vision encoder."
_KEY_BITS = 46
_CACHE_BYTES = 128 << 20  # of features that are kept for later calls; 1,000 tokens of 2,048 values are 8 MB


def image_ids(image: ImageInput) -> range:
    """What a prompt has in place of an image's placeholder tokens; the same for the same image, in any process.

    Raises ValueError for an image of no token, or of more than MAX_TOKENS.
    """
    if not 1 <= image.tokens <= MAX_TOKENS:
        raise ValueError(f"an image has {image.tokens} tokens; expected 1 to {MAX_TOKENS}. Give it in a smaller size.")
    key = int(image.sha256, 16) >> max(0, 4 * len(image.sha256) - _KEY_BITS)
    first = FIRST_ID + key * MAX_TOKENS
    return range(first, first + image.tokens)


def place_images(tokens: Sequence[int], images: Sequence[ImageInput], image_token: int) -> list[int]:
    """A prompt whose placeholder tokens are replaced by the images' ids, the images in the order of the prompt.

    Raises ValueError unless there are as many placeholders as the images have tokens.
    """
    ids = [one for image in images for one in image_ids(image)]
    count = sum(token == image_token for token in tokens)
    if count != len(ids):
        raise ValueError(
            f"the prompt has {count} placeholder tokens of images, and its {len(images)} images have {len(ids)}; "
            "expected the same number. The chat template has to write one placeholder for each image."
        )
    rest = iter(ids)
    return [next(rest) if token == image_token else token for token in tokens]


def place_in_image(token: int) -> int:
    """Which row of its image's features an id stands for."""
    return token - _first(token)


def end_of_image(tokens: Sequence[int], at: int) -> int:
    """Where the image ends that tokens have on both sides of a place; the place itself between images and text."""
    if not 0 < at < len(tokens) or tokens[at] < FIRST_ID or not is_next_row(tokens[at - 1], tokens[at]):
        return at
    while at < len(tokens) and is_next_row(tokens[at - 1], tokens[at]):
        at += 1
    return at


def is_next_row(token: int, following: int) -> bool:
    """Whether two ids stand for neighbouring rows of one image."""
    return token >= FIRST_ID and following == token + 1 and _first(token) == _first(following)


def last_seen(tokens: Sequence[int], start: int) -> list[int]:
    """For each of the tokens that are fed at a position, the last position that it attends to.

    Its own, or, of an image whose tokens attend to one another, that of the image's last token.
    """
    ends: list[int] = []
    while len(ends) < len(tokens):
        at = len(ends)
        end = end_of_image(tokens, at + 1)
        ends += [start + end - 1] * (end - at)
    return ends


def text_and_images(tokens: Sequence[int]) -> list[Sequence[int]]:
    """The tokens in pieces, each all of an image or text between images."""
    if max(tokens) < FIRST_ID:
        return [tokens]
    cuts = [0]
    while (at := cuts[-1]) < len(tokens):
        end = at + 1
        if tokens[at] >= FIRST_ID:
            end = end_of_image(tokens, end)
        else:
            while end < len(tokens) and tokens[end] < FIRST_ID:
                end += 1
        cuts.append(end)
    return [tokens[start:stop] for start, stop in pairwise(cuts)]


def without_images(tokens: Sequence[int]) -> Sequence[int]:
    """The tokens of a prompt that are text."""
    return tokens if max(tokens, default=0) < FIRST_ID else [token for token in tokens if token < FIRST_ID]


class WithImages(NamedTuple):
    """Tokens of a prompt with images, as a graph takes them."""

    tokens: NDArray[np.int64]  # [T], 0 in the places of images
    places: list[int]  # of the rows of images, among the T
    features: F32  # [places, hidden]


class ImageFeatures:
    """The features of an engine's images, computed when they are first fed and kept for later calls."""

    def __init__(
        self,
        open_encoder: Callable[[], VisionEncoder],
        *,
        bidirectional: bool = False,
        budget_bytes: int = _CACHE_BYTES,
    ) -> None:
        """open_encoder: called before the first image is encoded: who gives text only pays nothing.

        bidirectional: tokens of an image attend to one another, so that no feed may end within one.
        """
        self.bidirectional = bidirectional
        self._open = open_encoder
        self._encoder: VisionEncoder | None = None
        self._images: WeakValueDictionary[int, ImageInput] = WeakValueDictionary()
        self._features: dict[int, _Features] = {}  # the least recently used first
        self._budget_bytes = budget_bytes

    def add(self, images: Iterable[ImageInput]) -> None:
        """Lets these be fed, as long as somebody holds them."""
        for image in images:
            self._images[image_ids(image)[0]] = image

    def __contains__(self, token: int) -> bool:
        first = _first(token)
        if (features := self._features.get(first)) is not None:
            return token - first < features.tokens
        image = self._images.get(first)
        return image is not None and token - first < image.tokens

    def grid(self, token: int) -> tuple[int, int]:
        """Rows and columns of the image that an id is of.

        Raises ValueError for one that is not there, or whose features have no grid.
        """
        first = _first(token)
        grid = self._features[first].grid if first in self._features else None
        if grid is None and (image := self._images.get(first)) is not None:
            grid = image.grid
        if grid is None:
            raise ValueError(IMAGE_IS_GONE)
        return grid

    def start_of_piece(self, tokens: Sequence[int], start: int) -> int:
        """The last place at or before one that a prompt may be fed from: in front of an image that must not be cut."""
        if not self.bidirectional:
            return start
        while 0 < start < len(tokens) and is_next_row(tokens[start - 1], tokens[start]):
            start -= 1
        return start

    def end_of_piece(self, tokens: Sequence[int], end: int) -> int:
        """Where a piece of a prompt ends that shall end at a place: behind an image that must not be cut there."""
        return end_of_image(tokens, end) if self.bidirectional else end

    def take(self, tokens: Sequence[int], is_stopped: Callable[[], bool] = lambda: False) -> WithImages | None:
        """What a graph takes for tokens with ids of images among them; None: all are text. Otherwise as rows()."""
        if max(tokens) < FIRST_ID:
            return None
        import numpy as np

        places = [place for place, token in enumerate(tokens) if token >= FIRST_ID]
        ids = np.array(tokens, np.int64)
        ids[places] = 0
        return WithImages(ids, places, self.rows([tokens[place] for place in places], is_stopped))

    def rows(self, ids: Sequence[int], is_stopped: Callable[[], bool] = lambda: False) -> F32:
        """The features that ids stand for, [ids, hidden]; those of tiles behind them are not computed yet.

        is_stopped: asked before each tile, which may take a second. Raises ValueError for ids of an image that is not
        there, Interrupted once that says so.
        """
        import numpy as np

        needed: dict[int, int] = {}
        for token in ids:
            first = _first(token)
            needed[first] = max(needed.get(first, 0), token - first + 1)
        features = {first: self._encoded(first, count, is_stopped) for first, count in needed.items()}
        return np.stack([features[_first(token)][token - _first(token)] for token in ids])

    def close(self) -> None:
        """Frees the encoder and all features."""
        self._encoder = None
        self._features.clear()

    def _encoded(self, first: int, count: int, is_stopped: Callable[[], bool]) -> F32:
        """The rows of an image, of which `count` at least are there."""
        encoding = self._features.pop(first, None) or self._begun(first)
        self._features[first] = encoding
        if self._encoder is None and encoding.done < count:
            self._encoder = self._open()
        while encoding.done < count:
            if is_stopped():
                raise Interrupted
            assert self._encoder is not None
            encoding.add(self._encoder)
            if not encoding.tiles:
                self._make_room()
        assert encoding.rows is not None
        return encoding.rows

    def _begun(self, first: int) -> _Features:
        image = self._images.get(first)
        if image is None:
            raise ValueError(IMAGE_IS_GONE)
        return _Features(image.tokens, image.pixel_values, image.grid)

    def _make_room(self) -> None:
        while len(self._features) > 1 and sum(one.bytes for one in self._features.values()) > self._budget_bytes:
            del self._features[next(iter(self._features))]


class _Features:
    """The features of an image, as far as its tiles were encoded."""

    def __init__(self, tokens: int, pixels: Iterable[F32], grid: tuple[int, int] | None) -> None:
        self.tokens = tokens
        self.grid = grid
        self.done = 0  # rows
        self.rows: F32 | None = None  # [tokens, hidden]
        self.tiles = list(pixels)  # those that are not encoded yet

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in (*self.tiles, self.rows) if array is not None)

    def add(self, encoder: VisionEncoder) -> None:
        """Encodes the next tile. Raises ValueError where tiles become another number of rows than the prompt has."""
        import numpy as np

        rows = encoder.encode(self.tiles[0][None])
        done, is_last = self.done + len(rows), len(self.tiles) == 1
        if done > self.tokens or is_last != (done == self.tokens):
            raise ValueError(
                f"an image has {self.tokens} tokens in the prompt, and its pixels become "
                f"{done if is_last else f'{done} and more'}: the tiles and the prompt do not belong together."
            )
        if self.rows is None:
            self.rows = np.empty((self.tokens, rows.shape[1]), np.float32)
        self.rows[self.done : done] = rows
        self.done = done
        del self.tiles[0]


def check_tile(vision: Vision, pixel_values: F32) -> F32:
    """The pixels of one tile as encoders take them: contiguous float32. Raises ValueError for a tile of another size.

    pixel_values: [1, 3, height, width]. Several in one run take memory, and are no faster.
    """
    import numpy as np

    expected = (1, 3, vision.image_size, vision.image_size)
    if pixel_values.shape != expected:
        raise ValueError(f"the pixels of a tile are {list(pixel_values.shape)}; expected {list(expected)}.")
    return np.ascontiguousarray(pixel_values, np.float32)


def _first(token: int) -> int:
    """The id of the first row of the image that an id is of."""
    return token & ~(MAX_TOKENS - 1)


@runtime_checkable
class TakesImages(Protocol):
    """An engine whose sessions may be fed ids of images."""

    images: ImageFeatures | None
    """None: the model has no vision encoder."""


@runtime_checkable
class RefusesImages(Protocol):
    """An engine that may lack what a model that sees needs."""

    images_unsupported: Unsupported | None
    """Why it takes no images, and what helps."""


def images_unsupported(engine: object) -> Unsupported:
    """Why an engine takes no images, and what helps."""
    return (engine.images_unsupported if isinstance(engine, RefusesImages) else None) or Unsupported(
        "it does not run vision encoders with this library, or this model has none",
        "use the device 'cpu', 'openvino', 'cuda' or 'webgpu', with a vision-language model",
    )


def images_of(engine: object) -> ImageFeatures | None:
    """The features of an engine's images; None where it takes none."""
    return engine.images if isinstance(engine, TakesImages) else None
