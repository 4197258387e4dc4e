"""Image files to RGB, by Pillow: sizes are checked by the header first, and any damage is a ValueError.

Conversions are those of `convert_to_rgb` in transformers 5.24: transparency is composited onto white, palettes and CMYK
become RGB. Samples of 16 bits keep their upper 8, where Pillow's own conversion makes all from 256 on white.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from embedllm.errors import MissingPart
from embedllm.images.limits import MAX_SCANNED_PIXELS, check_bytes, check_size

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_ORIENTATION = 0x0112  # EXIF
_PNG_ORIENTATION = (b"eXIf", b"exif", b"XML:com.adobe.xmp")  # what is in a PNG that may say it
_SWAPS_SIDES = (5, 6, 7, 8)
_STRIP_PIXELS = 1 << 20  # composited at once
_DAMAGE = (  # what Pillow raises for files that are not what they say
    OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, OverflowError, ArithmeticError, AttributeError,
    RuntimeError, NotImplementedError, MemoryError, struct.error, zlib.error, Warning,
)  # fmt: skip


def read_size(data: bytes) -> tuple[int, int]:
    """Width and height of an image as it is seen, by its header alone.

    Raises ValueError for what is no image of FORMATS or exceeds the limits (embedllm/images/limits.py), MissingPart
    without Pillow.
    """
    with _opened(data) as image:
        # of a PNG, Pillow decodes all to find it, as it may stand at the end
        may_have = image.format != "PNG" or any(mark in data for mark in _PNG_ORIENTATION)
        swaps = may_have and image.getexif().get(_ORIENTATION) in _SWAPS_SIDES
        return (image.height, image.width) if swaps else image.size


def decode(data: bytes) -> Image:
    """The first frame of an image file, upright, as RGB. Raises what read_size() raises, ValueError for damage."""
    with _opened(data) as image:
        image.load()
        return upright_rgb(image)


def upright_rgb(image: Image) -> Image:
    """A Pillow image in RGB, rotated as its EXIF orientation says. Raises ValueError for a mode that has no colours."""
    from PIL import ImageOps

    return to_rgb(ImageOps.exif_transpose(image))


def to_rgb(image: Image) -> Image:
    """A Pillow image in RGB, 8 bits each. Raises ValueError for a mode that cannot be converted (floats)."""
    if image.mode.startswith("I"):
        return _upper_bits(image)
    if image.mode == "F":
        raise ValueError("the image has samples of 32-bit floats, whose range is not known; convert it to 8 bits.")
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


@contextmanager
def _opened(data: bytes) -> Iterator[Image]:
    """The image of a file whose header was checked; errors of the block are the file's damage."""
    check_bytes(len(data), "the image")
    image_module = pillow()
    size = _webp_size(data)  # Pillow allocates the canvas of a WebP when it opens it
    if size is not None:
        check_size(*size)
    try:
        image = image_module.open(io.BytesIO(data), formats=FORMATS)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise ValueError(f"the image has too many pixels: {error}. Scale it down.") from error
    except _DAMAGE as error:
        raise ValueError(
            f"the image cannot be read: it begins with {data[:12]!r}; expected a JPEG, PNG, WebP, GIF or BMP file."
        ) from error
    with image:
        check_size(*image.size)
        if image.format in ("JPEG", "MPO"):
            _check_scans(data, image.width * image.height)
        try:
            yield image
        except _DAMAGE as error:
            raise ValueError(
                f"the image is a damaged {image.format} of {image.width}x{image.height} pixels: {_first_line(error)}. "
                "Send the whole file."
            ) from error


def pillow():  # noqa: ANN201 # a module
    """The module PIL.Image. Raises MissingPart when Pillow is not installed."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "PIL":
            raise
        raise MissingPart(
            "images take the package 'pillow', which is not installed. Install it: pip install 'embedllm[images]'"
        ) from error
    return Image


def _first_line(error: BaseException) -> str:
    text = str(error).partition("\n")[0].strip().rstrip(".")
    return text[:200] or type(error).__name__


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a WebP; None: it is none. Source: RFC 9649, sections 2.5 to 2.7."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def _check_scans(data: bytes, pixels: int) -> None:
    """Raises ValueError for a JPEG whose many scans each take time for all of its pixels."""
    scans = data.count(b"\xff\xda")  # within a scan, 0xff is followed by 0 or is a marker
    if scans * pixels > MAX_SCANNED_PIXELS:
        raise ValueError(
            f"the image is a JPEG of {scans} scans over {pixels:,} pixels, which takes too long to decode."
        )


def _upper_bits(image: Image) -> Image:
    """Samples of 16 bits as grey of 8, in RGB. Raises ValueError for samples of more."""
    import numpy as np

    samples = np.asarray(image)
    if samples.size and not 0 <= int(samples.min()) <= int(samples.max()) < 1 << 16:
        raise ValueError(f"the image has samples up to {samples.max()}; expected 8 or 16 bits. Convert it to 8 bits.")
    return pillow().fromarray((samples >> 8).astype(np.uint8)).convert("RGB")


def _on_white(image: Image) -> Image:
    """Composited onto white, strip by strip: four images of full size would not fit the limits of memory."""
    module = pillow()
    result = module.new("RGB", image.size)
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        strip = image.crop(box)
        strip.info = image.info  # a palette's transparent entry
        strip = strip.convert("RGBA")
        white = module.new("RGBA", strip.size, (255, 255, 255, 255))
        result.paste(module.alpha_composite(white, strip).convert("RGB"), (0, top))
    return result
