"""The device "reference": NumPy, in float32, for checking the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.backends.driver import TESTED_LINUX, Capabilities, DeviceFamily, Driver, Source

if TYPE_CHECKING:
    from embedllm.backends.base import Device, Engine, OpenOptions

_NAME = "reference"


def _devices() -> list[Device]:
    from embedllm.backends.reference.engine import DEVICE

    return [DEVICE]


def _open(options: OpenOptions) -> Engine:
    from embedllm.backends.reference.engine import ReferenceEngine

    return ReferenceEngine(options.package)


def _open_encoder(options: OpenOptions) -> Engine:
    from embedllm.backends.reference.encoder_engine import open_reference

    return open_reference(options)


DRIVER = Driver(
    families=(
        DeviceFamily(
            name=_NAME,
            open=_open,
            open_encoder=_open_encoder,
            capabilities=Capabilities(
                moves_kv=False,
                adapters=True,
                recurrent=True,
                chunks=True,
                uses_host_memory=True,
                dequantizes=True,
                tested=TESTED_LINUX,
            ),
        ),
    ),
    sources=(Source((_NAME,), _devices),),
)
