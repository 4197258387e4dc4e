"""What a caller gives as an image: a data URL, bytes, a Pillow image, a NumPy array or a path."""

from __future__ import annotations

import base64
import binascii
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from embedllm.images.decode import decode, pillow, read_size, upright_rgb
from embedllm.images.limits import MAX_BYTES, check_bytes, check_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

ImageLike: TypeAlias = "str | bytes | os.PathLike[str] | Image | NDArray[np.generic]"
_REMOTE = ("http:", "https:", "ftp:", "file:", "blob:")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """An image whose size and kind were checked, and which is not decoded yet.

    width, height: pixels, upright. digest: sha256 of what was given, in hexadecimal digits.
    decode: gives it as a Pillow image in RGB; raises ValueError for damage behind the header.
    """

    width: int
    height: int
    digest: str
    decode: Callable[[], Image]


def open_image(image: object) -> ImageSource:
    """An image in any form that Python code may give; see ImageLike. A text is a data URL, never a path.

    A page's JavaScript has opened those of its messages already, which stay as they are.

    So no request of another program, which is JSON, can name a file: a path is a pathlib.Path.

    Raises ValueError for what is no image or exceeds the limits, TypeError for another type, OSError for a file that
    cannot be read, MissingPart without Pillow.
    """
    if isinstance(image, ImageSource):
        return image
    if isinstance(image, str):
        return _encoded(data_url_bytes(image))
    if isinstance(image, bytes | bytearray | memoryview):
        return _encoded(bytes(image))
    if isinstance(image, os.PathLike):
        return _encoded(_file_bytes(image))
    if _is_pillow(image):
        return _pixels(cast("Image", image))
    if hasattr(image, "__array_interface__") or hasattr(image, "__array__"):
        return _pixels(_array_image(image))
    raise TypeError(
        f"an image is a {type(image).__name__}; expected a data URL, bytes, a pathlib.Path, a Pillow image or an array."
    )


def data_url_bytes(url: str) -> bytes:
    """The file in a data URL: data:image/png;base64,...

    Raises ValueError for another URL, other encodings than base64 and files that exceed the limit.
    """
    refuse_remote(url)
    head, comma, body = url.partition(",")
    if head[:5].lower() != "data:" or not comma:
        raise ValueError(
            f"an image is the text {_shown(url)}; expected a data URL: data:image/png;base64,... Python code gives a "
            "file as a pathlib.Path."
        )
    if not head.lower().endswith(";base64"):
        raise ValueError(f"an image is a data URL that begins with {_shown(head)}; expected ';base64,' in it.")
    return base64_bytes(body)


def base64_bytes(text: str) -> bytes:
    """The file in base64. Raises ValueError for other characters and for files that exceed the limit."""
    check_bytes(len(text) // 4 * 3 - 2 if len(text) > MAX_BYTES else 1, "the image")
    if any(space in text for space in "\r\n \t"):
        text = "".join(text.split())
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"an image is not valid base64 ({error}).") from error
    check_bytes(len(data), "the image")
    return data


def refuse_remote(url: str) -> None:
    """Raises ValueError for an address: embedllm opens no connection for an image."""
    if url.lstrip()[:6].lower().startswith(_REMOTE):
        raise ValueError(
            f"an image is the address {_shown(url)}; embedllm downloads no images. Download it, and send a data URL "
            "(data:image/png;base64,...)."
        )


def data_url(image: object) -> str:
    """An image as a data URL: encoded files as they are, pixels as PNG, which loses nothing. Raises as open_image()."""
    if isinstance(image, str):
        open_image(image)
        return image
    if isinstance(image, bytes | bytearray | memoryview):
        data = bytes(image)
    elif isinstance(image, os.PathLike):
        data = _file_bytes(image)
    else:
        file = io.BytesIO()
        open_image(image).decode().save(file, "PNG")
        data = file.getvalue()
    open_image(data)
    return f"data:{_media_type(data)};base64,{base64.b64encode(data).decode('ascii')}"


def _encoded(data: bytes) -> ImageSource:
    width, height = read_size(data)
    return ImageSource(width=width, height=height, digest=sha256(data).hexdigest(), decode=partial(decode, data))


def _pixels(image: Image) -> ImageSource:
    check_size(*image.size)
    rgb = upright_rgb(image)
    digest = sha256(f"{rgb.width}x{rgb.height}:".encode() + rgb.tobytes()).hexdigest()
    return ImageSource(width=rgb.width, height=rgb.height, digest=digest, decode=lambda: rgb)


def _file_bytes(path: os.PathLike[str]) -> bytes:
    """Raises OSError, and ValueError for what is no file of an allowed size."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no image '{file}'.")
    check_bytes(file.stat().st_size, f"'{file}'")
    return file.read_bytes()


def _is_pillow(image: object) -> bool:
    module = sys.modules.get("PIL.Image")  # who has an image has imported it
    return module is not None and isinstance(image, module.Image)


def _array_image(image: object) -> Image:
    """[H, W], [H, W, 1], [H, W, 3] or [H, W, 4]; uint8, or floats from 0 to 1."""
    import numpy as np

    array = np.asarray(image)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ValueError(
            f"an image is an array of the shape {list(array.shape)}; expected [height, width] or [height, width, 1, 3 "
            "or 4 channels]."
        )
    check_size(array.shape[1], array.shape[0])
    if array.dtype.kind == "f":
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ValueError(
                f"an image is an array of {array.dtype} with values out of 0 to 1; scale it, or give uint8."
            )
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ValueError(f"an image is an array of {array.dtype}; expected uint8 (0 to 255) or floats (0 to 1).")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return pillow().fromarray(np.ascontiguousarray(array))


def _media_type(data: bytes) -> str:
    """Of a file that was opened."""
    kinds = {b"\xff\xd8": "jpeg", b"\x89P": "png", b"RI": "webp", b"GI": "gif", b"BM": "bmp"}
    return f"image/{kinds.get(data[:2], 'png')}"


def _shown(text: str) -> str:
    """The beginning of a text for a message: data URLs have megabytes."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
