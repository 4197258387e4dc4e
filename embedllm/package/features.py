"""Features of the package format: what a reader must know to use a folder, by name (docs/format.md#features)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.package.manifest_fields import integer_of, wrong

if TYPE_CHECKING:
    from embedllm.package.packing import Packing

FORMAT = 1  # of the manifest; what comes after it is a feature
SHARDS = "shards"  # files in shards
ENCODER = "encoder"  # an embedding or reranker model
MINIMUMS = "minimums"  # matrices with a float minimum a group in place of a zero point
FLOAT32_SCALES = "float32-scales"
LEVELS = "levels"  # matrices of fewer integers than their bits could hold
COLUMN_ORDER = "column-order"  # matrices whose columns are stored in another order (act-order)
VISION = "vision"  # a vision encoder beside the decoder
FEATURES = (SHARDS, ENCODER, MINIMUMS, FLOAT32_SCALES, LEVELS, COLUMN_ORDER, VISION)  # those that this version reads
_UPGRADE = "Upgrade with: pip install -U embedllm"


def features_of(packings: Iterable[Packing], *, is_encoder: bool, has_vision: bool = False) -> list[str]:
    """What an export with these packings needs of its readers, in the order of FEATURES."""
    packings = list(packings)
    needed = {
        ENCODER: is_encoder,
        MINIMUMS: any(packing.has_minimum for packing in packings),
        FLOAT32_SCALES: any(packing.scale_bits == 32 for packing in packings),
        LEVELS: any(packing.levels for packing in packings),
        COLUMN_ORDER: any(packing.column_order for packing in packings),
        VISION: has_vision,
    }
    return [name for name in FEATURES if needed.get(name)]


def with_feature(features: object, name: str, *, is_needed: bool) -> list[str]:
    """A manifest's features with one more, or without it, in the order of FEATURES."""
    listed = {*(features if isinstance(features, list) else ()), name}
    return [feature for feature in FEATURES if feature in listed and (feature != name or is_needed)]


def read_format(manifest: Mapping[str, object]) -> int:
    """The number of the manifest's format. Raises PackageError when there is none."""
    return integer_of(manifest, "format", least=1)


def check_features(manifest: Mapping[str, object], name: str) -> None:
    """Raises PackageError for a format or a feature that this version does not read. name: of the folder."""
    version = read_format(manifest)
    if version != FORMAT:
        raise PackageError(f"'{name}' has format {version}; this version of embedllm reads format {FORMAT}. {_UPGRADE}")
    unknown = [feature for feature in listed_features(manifest) if feature not in FEATURES]
    if unknown:
        names = ", ".join(f"'{feature}'" for feature in unknown)
        raise PackageError(f"'{name}' needs {names}, which this version of embedllm does not read. {_UPGRADE}")


def listed_features(manifest: Mapping[str, object]) -> list[str]:
    """The features that a manifest lists; none where it does not say. Raises PackageError for anything but names."""
    value = manifest.get("features", [])
    if not isinstance(value, list):
        raise wrong("features", value, "the manifest's", "a list of names")
    names = [name for name in value if isinstance(name, str) and name.isprintable()]
    if len(names) != len(value):
        raise wrong("features", value, "the manifest's", "a list of names")
    return names
