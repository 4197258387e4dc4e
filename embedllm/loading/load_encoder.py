"""Opens a folder of a model that embeds or scores texts, on the first device of a wish that can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from embedllm.embeddings import Encoding
from embedllm.generation.defaults import read_defaults
from embedllm.loading.device_search import open_first
from embedllm.model import Model
from embedllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from embedllm.backends.options import OpenVINOOptions, RuntimeOptions
    from embedllm.package.package import Package


def open_encoder(
    package: Package,
    wish: str | Sequence[str],
    *,
    runtime: RuntimeOptions,
    exact: bool,
    openvino: OpenVINOOptions | None,
    only_for_text: Mapping[str, object],
) -> Model:
    """See load().

    only_for_text: options that only models that generate text have, by name; ValueError for one that is given.
    """
    from embedllm.backends.devices import registry
    from embedllm.backends.devices import selection as select
    from embedllm.backends.reference.encoder_engine import EncoderEngine

    if given := [name for name, value in only_for_text.items() if value is not None]:
        raise ValueError(f"'{package.name}' embeds or scores texts and generates none; leave out {given[0]}.")
    search = select.DeviceSearch(registry.DeviceCatalog(package, exact=exact).lookup, wish)
    defaults, tokenizer = read_defaults(package.folder), Tokenizer.open(package.folder)  # before the weights
    engine, memory, _ = open_first(
        package, search, runtime=lambda device: runtime, exact=exact, kv=None, openvino=openvino, adapters=None
    )
    assert isinstance(engine, EncoderEngine)  # all that open such a package
    return Model(package, engine, tokenizer=tokenizer, defaults=defaults, memory=memory,
                 encoding=Encoding(package, tokenizer, engine),
                 tuned="a model that embeds or scores texts is not tuned")  # fmt: skip
