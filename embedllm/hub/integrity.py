"""Records downloads whose hashes are not verified yet, so that they are verified after a crash, too."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from embedllm.files.user_cache import user_cache


class PendingChecks:
    """Of one commit of a repository: a note on disk for each download that is going on, or was when a process ended."""

    def __init__(self, repository: str, commit: str) -> None:
        self._folder = user_cache("unchecked")
        self._digest = hashlib.sha256(f"{repository} {commit}".encode()).hexdigest()[:16]
        self._notes: dict[Path, frozenset[str]] = {}
        for path in self._folder.glob(f"{self._digest}-*.json"):
            with suppress(OSError, ValueError):  # it was checked meanwhile, or only begun
                self._notes[path] = frozenset(json.loads(path.read_bytes()))

    @property
    def names(self) -> set[str]:
        """Files that may be in the cache unchecked."""
        return set().union(*self._notes.values())

    def begin(self, names: Iterable[str]) -> None:
        """Notes files before they are downloaded; where nothing can be written that is left out."""
        path = self._folder / f"{self._digest}-{secrets.token_hex(8)}.json"
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(sorted(names)))
            self._notes[path] = frozenset(names)

    def end(self, checked: Iterable[str]) -> None:
        """Forgets the notes whose files were all checked."""
        checked_names = set(checked)
        for path, names in self._notes.items():
            if names <= checked_names:
                path.unlink(missing_ok=True)
