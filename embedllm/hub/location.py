"""The location of a source: a directory, or a Hugging Face repository in the cache of huggingface_hub.

The small files come first, so that whatever is wrong with them is known before gigabytes are downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import ExportError

MORE_TEMPLATES = "additional_chat_templates"  # a folder
# what is copied into a package as it is
TEXTS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
    "preprocessor_config.json", "processor_config.json",
    "chat_template.jinja", "chat_template.json", f"{MORE_TEMPLATES}/*.jinja",
    "LICEN[SC]E*", "[Ll]icen[sc]e*", "NOTICE*", "[Nn]otice*",
)  # fmt: skip
SENTENCES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "*/config.json")
SMALL = ["config.json", "README.md", "added_tokens.json", "*.safetensors.index.json", *TEXTS, *SENTENCES]
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Location:
    """A source whose small files are there to be read."""

    folder: Path
    name: str  # a repo id, or the name of the folder: a package is handed on, paths of this machine are not
    repository: str = ""  # "" for a folder
    revision: str = ""  # the commit that was fetched
    fetcher: Callable[[Sequence[str]], object] | None = None  # what fetches files, where another has fetched these

    def fetch(self, names: Sequence[str]) -> None:
        """Makes sure that these files are in the folder, as far as the source has them."""
        if self.fetcher is not None:
            self.fetcher(names)
        elif self.repository:
            _download(self.repository, self.revision, names)


def locate(source: str | Path | Location, revision: str | None = None) -> Location:
    """The place of a source; one that is known already as it is.

    revision: a branch, tag or commit of a repository; None takes its main branch.
    Raises ExportError when there is neither such a folder nor such a repository.
    """
    if isinstance(source, Location):
        return source
    path = Path(os.path.expanduser(source))  # noqa: PTH111  # Path.expanduser raises for a user that is not there
    with suppress(OSError):  # a name that is too long, say, is none of a folder
        if path.is_dir():
            return Location(path, path.resolve().name)
        if path.exists():
            raise ExportError(f"'{path}' is a file; expected a folder with config.json and safetensors, or a repo id.")
    if not _REPOSITORY.fullmatch(str(source)):
        raise ExportError(f"there is no folder '{source}', and it is no repo id like 'Qwen/Qwen3-0.6B'.")
    folder = _download(str(source), revision, SMALL)
    return Location(folder, str(source), str(source), folder.name)  # the cache names a snapshot by its commit


def _download(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # the client's own, ValueError for the name, or those of whichever HTTP package it uses
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ExportError(
            f"there is no folder '{repository}', and it cannot be downloaded from the Hugging Face hub: {reason}"
        ) from error
