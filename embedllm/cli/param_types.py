"""Sizes of files as people write them, 25MiB, 1900MB, and of weights: 4 bits, 4.75."""

from __future__ import annotations

import re
from decimal import Decimal

import click

PLAIN_BITS = (4, 8, 16, 32)
_FACTORS = {"K": 1, "M": 2, "G": 3, "T": 4}


class ByteSize(click.ParamType):
    """Bytes, of a number with a unit: kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024; of none, bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMGT])?(I)?B)?", str(value).strip().upper(), re.ASCII)
        size = 0
        if match and (match[2] or not match[3]):
            size = int(Decimal(match[1]) * (1024 if match[3] else 1000) ** _FACTORS.get(match[2], 0))
        if size < 1:
            self.fail(
                f"{value!r} is no size; expected one such as 25MiB, 1900MB or 2GB, of a byte or more.", param, ctx
            )
        return size


class Bits(click.ParamType):
    """Bits of a weight: those of one kind of storage, or of a mix of 4 and 8."""

    name = "bits"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            bits = float(str(value))
        except ValueError:
            bits = 0.0
        if not (bits in PLAIN_BITS or 4 < bits < 16):
            self.fail(f"{value!r} is not 4, 8, 16 or 32, nor a mean that 4 and 8 bits give, such as 5.25.", param, ctx)
        return bits
