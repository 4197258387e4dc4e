"""The location of a source: a directory, or a Hugging Face repository in the cache of huggingface_hub.

The small files come first, so that whatever is wrong with them is known before gigabytes are downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import ExportError
from embedllm.files.home_path import expanded

if TYPE_CHECKING:
    from embedllm.files.progress import Progress
    from embedllm.hub.repository import Repository

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
_WEIGHTS = "model.safetensors"  # of a checkpoint in one file
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Location:
    """A source whose small files are there to be read."""

    folder: Path
    name: str  # a repo id, or the name of the folder: a package is handed on, paths of this machine are not
    revision: str = ""  # of a repository, the commit that was fetched
    fetcher: Callable[[Sequence[str]], object] | None = None  # what fetches further files of a repository

    def fetch(self, names: Sequence[str]) -> None:
        """Makes sure that these files are in the folder, as far as the source has them."""
        if self.fetcher is not None:
            self.fetcher(names)


def locate(source: str | Path | Location, revision: str | None = None) -> Location:
    """The place of a source; one that is known already as it is.

    revision: a branch, tag or commit of a repository; None takes its main branch.
    Raises ExportError for what is neither a folder nor a repo id, HubError for a repository that cannot be had.
    """
    if isinstance(source, Location):
        return source
    path = expanded(source)
    with suppress(OSError):  # a name that is too long, say, is none of a folder
        if path.is_dir():
            return Location(path, path.resolve().name)
        if path.exists():
            raise ExportError(f"'{path}' is a file; expected a folder with config.json and safetensors, or a repo id.")
    if not _REPOSITORY.fullmatch(str(source)):
        raise ExportError(f"there is no folder '{source}', and it is no repo id like 'Qwen/Qwen3-0.6B'.")
    from embedllm.hub.repository import open_repository

    repository = open_repository(str(source), revision=revision)
    found = of_repository(repository)
    repository.remember()  # for a time without the hub
    return found


def of_repository(
    repository: Repository,
    on_progress: Callable[[Progress], None] | None = None,
    before: Callable[[Sequence[str]], None] = lambda _: None,
) -> Location:
    """A checkpoint whose weights are downloaded when the export asks for them; `before` is called with their names."""

    def fetch(names: Sequence[str]) -> None:
        needed = [name for name in names if name in repository.files or name != _WEIGHTS]
        before(needed)
        repository.fetch(needed, on_progress)

    small = [name for name in repository.files if any(fnmatchcase(name, pattern) for pattern in SMALL)]
    return Location(repository.fetch(small), repository.name, revision=repository.commit, fetcher=fetch)
