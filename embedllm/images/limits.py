"""How large an image may be; checked by the header, before anything of its size is allocated. Standard library only."""

from __future__ import annotations

MAX_BYTES = 50 << 20  # of a file
MAX_PIXELS = 50_000_000  # 48 megapixels of a telephone's camera pass; 150 MB as RGB
MAX_SIDE = 32_768  # pixels
MAX_IMAGES = 1000  # of a prompt
MAX_SCANNED_PIXELS = 2_000_000_000  # pixels times the scans of a progressive JPEG, of which cameras write about 10


def check_bytes(count: int, what: str) -> None:
    """Raises ValueError for a file that is too large. what: names it in the message."""
    if count > MAX_BYTES:
        raise ValueError(f"{what} has {count:,} bytes; {MAX_BYTES:,} are allowed. Scale it down.")
    if count == 0:
        raise ValueError(f"{what} is empty; expected a JPEG, PNG, WebP, GIF or BMP file.")


def check_size(width: int, height: int) -> None:
    """Raises ValueError for a size in pixels that is none, or is too large."""
    if width < 1 or height < 1:
        raise ValueError(f"the image is {width}x{height} pixels; expected at least 1x1.")
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise ValueError(
            f"the image is {width}x{height} pixels; sides of {MAX_SIDE:,} and {MAX_PIXELS:,} pixels in all are "
            "allowed. Scale it down."
        )
