"""Writes the graphs and the manifests of the packages in this repository again, by the present emitters.

    python tools/refresh_packages.py

For the demo, the probe and the model of samples/seeing, when the format or a graph changes: their weights stay as they
are, byte for byte.
"""

from __future__ import annotations

from pathlib import Path

import embedllm
from embedllm.backends.probe.probe import FOLDER
from embedllm.export.graphs import write_variant
from embedllm.export.verify import verify_folder
from embedllm.export.writing.genai_config import genai_config
from embedllm.files.atomic import write_json
from embedllm.package.features import features_of
from embedllm.package.package import MANIFEST, open_package, sha256
from embedllm.package.packing import packings

DEMO = Path(embedllm.__file__).parent / "demo"
SEEING = Path(__file__).parent.parent / "samples" / "seeing" / "model"


def refresh(folder: Path) -> None:
    """Writes every listed graph of a folder again, then the rest of its manifest."""
    before = open_package(folder, whole=False)
    for graph in before.listed:
        write_variant(folder, graph.variant)
    package = open_package(folder)
    tokens = package.manifest["tokens"]
    assert isinstance(tokens, dict)
    write_json(folder / "genai_config.json", genai_config(package.decoder, tokens))
    features = features_of(packings(package.manifest).values(), is_encoder=package.encoder is not None,
                           has_vision=package.encoder is None and package.decoder.vision is not None)  # fmt: skip
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in package.files}
    write_json(folder / MANIFEST, {**package.manifest, "features": features, "files": files})
    if before.manifest.get("verification") != package.manifest.get("verification"):  # of graphs that changed
        verify_folder(folder)
    open_package(folder).check()
    print(folder, "is as the present version writes it")  # noqa: T201 - a script for the command line


if __name__ == "__main__":
    for each in (DEMO, FOLDER, SEEING):
        refresh(each)
