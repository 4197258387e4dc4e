"""Image files to RGB: every format and mode, and 500 hostile files."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
import psutil
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from embedllm.images.decode import decode, read_size
from embedllm.images.limits import MAX_BYTES

GRADIENT = Image.merge(
    "RGB",
    [
        Image.linear_gradient("L").resize((40, 30)),
        Image.radial_gradient("L").resize((40, 30)),
        Image.linear_gradient("L").rotate(90).resize((40, 30)),
    ],
)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def difference(found: Image.Image, expected: Image.Image) -> int:
    """The largest one, in levels of 255."""
    assert (found.mode, found.size) == ("RGB", expected.size)
    return int(np.abs(np.asarray(found).astype(int) - np.asarray(expected).astype(int)).max())


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 100}), ("GIF", {})],
)
def test_each_format_is_read(kind: str, options: dict[str, object]) -> None:
    data = encoded(GRADIENT, kind, **options)
    assert read_size(data) == (40, 30)
    assert difference(decode(data), Image.open(io.BytesIO(data)).convert("RGB")) == 0


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_read(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    data = encoded(
        frames[0],
        kind,
        save_all=True,
        append_images=frames[1:],
        duration=100,
        **({"lossless": True} if kind == "WEBP" else {}),
    )
    assert difference(decode(data), frames[0]) == 0


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(GRADIENT, "PNG", exif=exif)
    found = decode(data)
    assert read_size(data) == found.size == ((30, 40) if orientation > 4 else (40, 30))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert difference(found, expected) == 0


def test_what_is_transparent_is_white() -> None:
    clear = Image.new("RGBA", (3, 2), (200, 0, 0, 0))
    half = Image.new("RGBA", (3, 2), (255, 0, 0, 128))
    assert decode(encoded(clear, "PNG")).getpixel((0, 0)) == (255, 255, 255)
    assert decode(encoded(half, "PNG")).getpixel((2, 1)) == (255, 127, 127)
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    assert decode(encoded(palette, "PNG", transparency=1)).getpixel((0, 0)) == (255, 255, 255)
    assert decode(encoded(palette, "PNG")).getpixel((0, 0)) == (9, 8, 7)
    grey = Image.new("LA", (3, 2), (10, 0))
    assert decode(encoded(grey, "PNG")).getpixel((0, 0)) == (255, 255, 255)


def test_transparency_of_a_large_image_is_composited_as_of_a_small_one() -> None:
    image = Image.new("RGBA", (2000, 1100))
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    white = Image.new("RGBA", image.size, "white")
    assert (
        difference(decode(encoded(image, "PNG", compress_level=1)), Image.alpha_composite(white, image).convert("RGB"))
        == 0
    )


def test_cmyk_becomes_rgb_as_pillow_converts_it() -> None:
    image = GRADIENT.convert("CMYK")
    data = encoded(image, "JPEG", quality=100)
    assert difference(decode(data), Image.open(io.BytesIO(data)).convert("RGB")) == 0


def test_samples_of_16_bits_keep_their_upper_8() -> None:
    samples = (np.arange(64, dtype=np.uint16) * 1023).reshape(8, 8)
    found = np.asarray(decode(encoded(Image.fromarray(samples), "PNG")))
    assert np.array_equal(found, np.repeat((samples >> 8)[:, :, None], 3, axis=2))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"GIF", "cannot be read"),
        (b"%PDF-1.7 text", "cannot be read"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read"),
        (encoded(GRADIENT, "TIFF"), "cannot be read"),  # of formats that are read, it is none
        (encoded(Image.new("1", (32_769, 1)), "PNG"), r"is 32769x1 pixels; sides of 32,768"),
        (encoded(Image.new("1", (100_000, 1)), "PNG"), r"is 100000x1 pixels"),
        (encoded(Image.new("1", (8000, 8000)), "PNG"), "is 8000x8000 pixels"),
    ],
)
def test_what_is_refused_says_why(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_size(data)


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 52,428,801 bytes; 52,428,800 are allowed"):
        read_size(bytes(MAX_BYTES + 1))


def test_a_truncated_file_is_refused() -> None:
    data = encoded(GRADIENT, "PNG")
    assert read_size(data[:-40]) == (40, 30)
    with pytest.raises(ValueError, match="damaged PNG of 40x30 pixels"):
        decode(data[:-40])


def test_a_jpeg_of_many_scans_is_refused() -> None:
    data = encoded(Image.new("RGB", (4000, 4000)), "JPEG", progressive=True)
    scan = data[data.index(b"\xff\xda") : -2]
    with pytest.raises(ValueError, match=r"a JPEG of \d+ scans over 16,000,000 pixels"):
        read_size(data[:-2] + scan * 200 + data[-2:])


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises more than it has."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(10_000_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def webp_canvas(width: int, height: int) -> bytes:
    """A WebP with a canvas of this size, and no frames."""
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x12\0\0\0" + (width - 1).to_bytes(3, "little")
    body += (height - 1).to_bytes(3, "little") + b"ANIM" + struct.pack("<I", 6) + bytes(6)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def samples() -> list[bytes]:
    """Small whole files, of many kinds."""
    text = PngInfo()
    text.add_text("a", "b" * 100_000, zip=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "green")]
    return [
        encoded(GRADIENT, "PNG"),
        encoded(GRADIENT, "PNG", pnginfo=text),
        encoded(GRADIENT, "JPEG"),
        encoded(GRADIENT, "JPEG", progressive=True, exif=exif),
        encoded(GRADIENT.convert("CMYK"), "JPEG"),
        encoded(GRADIENT.convert("L"), "JPEG"),
        encoded(GRADIENT, "WEBP"),
        encoded(GRADIENT, "WEBP", lossless=True),
        encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        encoded(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        encoded(GRADIENT, "BMP"),
        encoded(GRADIENT.convert("P"), "BMP"),
        encoded(GRADIENT.convert("1"), "PNG"),
        encoded(GRADIENT.convert("RGBA"), "PNG", exif=exif),
        encoded(Image.fromarray(np.full((9, 9), 40_000, np.uint16)), "PNG"),
        encoded(Image.new("RGB", (1, 1)), "PNG"),
        encoded(Image.new("RGB", (1, 700)), "JPEG"),
        bomb(40, 30),
        bomb(7000, 7000),
        bomb(65_535, 65_535),
        bomb(0, 1),
        webp_canvas(16_383, 16_383),
        webp_canvas(30, 20),
    ]


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flipped(data: bytes, rng: random.Random) -> bytes:
    """With a few bytes changed, mostly of the header."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(min(len(data), rng.choice([64, 1024, len(data)])))
        changed[at] = rng.randrange(256)
    return bytes(changed)


def resized(data: bytes, rng: random.Random) -> bytes:
    """With large numbers in the place of others in the header."""
    at = rng.randrange(min(len(data) - 4, 40))
    return (
        data[:at]
        + struct.pack(rng.choice("<>") + "I", rng.choice([1, 100_000, 0x7FFFFFFF, 0xFFFFFFFF]))
        + data[at + 4 :]
    )


def spliced(data: bytes, rng: random.Random) -> bytes:
    """The beginning of one and the end of another."""
    other = rng.choice(samples())
    return data[: rng.randint(4, 64)] + other[rng.randrange(len(other)) :]


def whole(data: bytes, rng: random.Random) -> bytes:
    return data


@pytest.mark.slow
def test_500_hostile_files_are_refused_or_read_in_bounded_memory() -> None:
    rng = random.Random(5)
    files = samples()
    changes: list[Callable[[bytes, random.Random], bytes]] = [truncated, flipped, flipped, resized, spliced, whole]
    read = 0
    refused: list[str] = []
    before = psutil.Process().memory_info().rss
    peak = 0
    for count in range(500):
        data = rng.choice(changes)(files[count % len(files)], rng)
        try:
            size = read_size(data)
            image = decode(data)
        except ValueError as error:
            refused.append(str(error))
        else:
            read += 1
            assert (image.mode, image.size) == ("RGB", size)
            del image
        peak = max(peak, psutil.Process().memory_info().rss)
    assert read > 100
    assert len(refused) > 100
    assert [text for text in refused if not text.startswith("the image ") or len(text) > 400 or " at 0x" in text] == []
    assert peak - before < 400 << 20  # two images of the largest size that is allowed
