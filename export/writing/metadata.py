"""What a package has besides weights and graphs: texts as they are, and what its manifest says of the source."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.checkpoints.huggingface import read_json
from embedllm.export.checkpoints.open_files import reading
from embedllm.export.open_source import Checkpoint
from embedllm.export.openvino.links import weight_links
from embedllm.export.recipe import Recipe
from embedllm.files.atomic import write_json
from embedllm.files.version import __version__
from embedllm.hub.location import MORE_TEMPLATES, TEXTS, Location
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture_json import to_json
from embedllm.package.entries import FileEntry, Graph
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.features import FORMAT
from embedllm.package.file_blocks import file_blocks
from embedllm.package.file_state import sampled_sha256
from embedllm.package.links import link_fault
from embedllm.package.package import WEIGHTS, sha256
from embedllm.package.packing import Packing


def facts_of(location: Location, recipe: Recipe, tokens: dict[str, object], name: str) -> dict[str, object]:
    """What a manifest says of where the package comes from."""
    return {
        "format": FORMAT,
        "features": [],
        "created_by": f"embedllm {__version__}",
        "name": name,
        "source": location.name,
        "revision": location.revision or None,
        "license": _license(location.folder),
        "tokens": tokens,
        "recipe": dataclasses.asdict(recipe),
    }


def manifest_of(
    folder: Path,
    facts: Mapping[str, object],
    model: Decoder | ExternalGraph,
    graphs: Sequence[Graph],
    packing: Mapping[str, Packing],
    hashes: Mapping[str, str],
) -> dict[str, object]:
    """The manifest of a folder that has all else. hashes: of files that were hashed as they were written."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for link in weight_links(files):  # second names, no files of their own: docs/format.md#openvino_modelbin
        files.pop(link, None)
    return {
        **facts,
        "context": model.context,
        "graphs": [graph.as_json() for graph in graphs],
        "quantization": {name: packed.entry for name, packed in packing.items()},
        "architecture": to_json(model),
        "files": {name: _file_entry(name, path, hashes.get(name, "")).as_json() for name, path in files.items()},
    }


def _file_entry(name: str, path: Path, digest: str) -> FileEntry:
    """digest: its sha256, where it was hashed as it was written; else empty."""
    size, digest = path.stat().st_size, digest or sha256(path)
    if name != WEIGHTS:
        return FileEntry(bytes=size, sha256=digest)
    return FileEntry(bytes=size, sha256=digest, sampled_sha256=sampled_sha256(path), blocks=file_blocks(path))


def special_tokens(reader: Checkpoint, vocabulary: int, ends: Sequence[int] = ()) -> dict[str, object]:
    """bos and pad (or None) and the list of stop tokens; generation_config.json goes before config.json.

    ends: further stop tokens, which the tokenizer knows; those that the model does not have are left out.
    Raises ExportError for a stop token that the model cannot give: it would not stop. A bos or pad token outside of
    the vocabulary means that there is none (some configs say -1, or one more than there are).
    """
    path = reader.folder / "generation_config.json"
    generation = read_json(path, "generation settings") if path.exists() else {}

    def token(key: str) -> object:
        value = generation.get(key)
        return reader.config.get(key) if value is None else value

    stop, bos, pad = (token(f"{name}_token_id") for name in ("eos", "bos", "pad"))
    stops = [_token_id(value) for value in ([] if stop is None else stop if isinstance(stop, list) else [stop])]
    bos, pad = (None if value is None else _token_id(value) for value in (bos, pad))
    for value in stops:
        if not 0 <= value < vocabulary:
            raise ExportError(f"a stop token id is {value}; expected 0 to {vocabulary - 1}, a token of the model.")
    # no range(): it compares None with each number of a vocabulary
    bos, pad = (value if value is not None and 0 <= value < vocabulary else None for value in (bos, pad))
    model_ends = (token for token in ends if token < vocabulary)
    return {"bos": bos, "pad": pad, "stop": [*dict.fromkeys([*stops, *model_ends])]}


def _token_id(value: object) -> int:
    if type(value) is not int:
        raise ExportError(f"a special token id is {value!r}; expected a whole number.")
    return value


def texts_of(folder: Path) -> dict[str, Path]:
    """The files that go into the package as they are, by their names in it; tokenizer_file.py may change one."""
    if not (folder / "tokenizer.json").exists():
        raise ExportError(
            f"there is no tokenizer.json in '{folder}'. With transformers installed, write one with: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    files: dict[str, Path] = {}
    for path in sorted([*folder.iterdir(), *(folder / MORE_TEMPLATES).glob("*")]):
        name = path.relative_to(folder).as_posix()
        matches = [pattern for pattern in TEXTS if fnmatchcase(name, pattern)]
        # a folder LICENSES is none of them, but a link that leads nowhere is: reading it says so
        if name in matches or (matches and not path.is_dir()):
            files[name] = path
    if fault := link_fault(folder, files):
        raise ExportError(fault)
    return files


def copy_texts(texts: Mapping[str, Path], partial: Path) -> None:
    """Writes them into a package."""
    for name, path in texts.items():
        with reading(path):
            data = path.read_bytes()
        (partial / name).parent.mkdir(exist_ok=True)
        (partial / name).write_bytes(data)


def write_stop_tokens(partial: Path, tokens: object) -> None:
    """Lists in a package's generation_config.json all tokens that end a reply; openvino-genai looks for them there.

    tokens: of the manifest.
    """
    assert isinstance(tokens, dict)
    path = partial / "generation_config.json"
    generation = read_json(path, "generation settings") if path.exists() else {}
    if tokens["stop"]:
        write_json(path, {**generation, "eos_token_id": tokens["stop"]})


def _license(folder: Path) -> str | None:
    """The license that the model card names, if there is one."""
    card = folder / "README.md"
    if not card.exists():
        return None
    with reading(card):
        text = card.read_text(encoding="utf-8", errors="replace")
    head = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    line = re.search(r"^licen[sc]e:\s*(\S.*)$", head[1], re.MULTILINE) if head else None
    return line[1].strip().strip("'\"") if line else None
