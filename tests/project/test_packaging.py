"""The wheel and the source distribution hold what an installation needs: all modules, the demo, types, the licence."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections import Counter
from email.message import Message
from pathlib import Path

import pytest

import embedllm

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]  # import name -> folder


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    result = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, since a build writes into its sources."""
    ignored = shutil.ignore_patterns(
        ".git", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist", "node_modules"
    )
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("build") / "sources", symlinks=True, ignore=ignored))


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    return wheel_of(sources)


@pytest.fixture(scope="module")
def source_distribution(sources: Path) -> Path:
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    out = sources.parent / "sdist"
    run(sys.executable, "-c", build, out, cwd=sources)
    (file,) = out.iterdir()
    return file


def wheel_of(sources: Path) -> Path:
    out = sources.parent / f"wheel of {sources.name}"
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", out, ".",
        cwd=sources)  # fmt: skip
    (file,) = out.iterdir()
    return file


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names))
        return {name: archive.read(name) for name in names}


def expected(sources: Path) -> dict[str, bytes]:
    """What an installation has of its sources: everything in the folders of its packages.

    Of the npm package, which one of them is too, the modules.
    """
    found = {}
    for package, folder in FOLDERS.items():
        for place, folders, files in os.walk(sources / folder):  # not into links, which are the other packages
            folders[:] = [name for name in folders if name != "__pycache__"]
            inside = Path(place).relative_to(sources / folder)
            found |= {
                (Path(package.replace(".", "/")) / inside / name).as_posix(): (Path(place) / name).read_bytes()
                for name in files
                if package != "embedllm.web" or name.endswith((".py", ".js"))
            }
    return found


def test_pyright_checks_every_python_file_of_the_package_once() -> None:
    """By the names that imports have: a link's target is another module. It does not follow links it is not told of."""
    settings = PYPROJECT["tool"]["pyright"]
    included = [ROOT / folder for folder in settings["include"]]
    assert set(settings["exclude"]) == {"**/__pycache__", "**/node_modules"}  # patterns that hide no module of ours
    checked = [Path(place) / name for folder in included for place, _, names in os.walk(folder) for name in names]
    times = Counter(path.resolve() for path in checked if path.suffix == ".py")
    package = {path for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")}
    assert {path.relative_to(ROOT): times[path.resolve()] for path in package if times[path.resolve()] != 1} == {}
    ours = {ROOT / name.replace(".", "/") for name in FOLDERS}
    assert not {ROOT / folder for folder in FOLDERS.values()} & set(included) - ours, "the target of a link"


@pytest.mark.slow
def test_the_wheel_holds_the_modules_the_demo_and_nothing_else(wheel: Path, sources: Path) -> None:
    found = contents(wheel)
    ours = {name: data for name, data in found.items() if ".dist-info/" not in name}
    assert sorted(ours) == sorted(expected(sources))
    assert ours == expected(sources)
    assert any(name.endswith("/weights.safetensors") for name in ours)


@pytest.mark.slow
def test_the_wheel_says_what_it_is(wheel: Path, sources: Path) -> None:
    found = contents(wheel)
    about = f"embedllm-{embedllm.__version__}.dist-info"
    assert wheel.name == f"embedllm-{embedllm.__version__}-py3-none-any.whl"
    assert found[f"{about}/licenses/LICENSE"] == (sources / "LICENSE").read_bytes()
    assert b"embedllm = embedllm.__main__:main" in found[f"{about}/entry_points.txt"]
    metadata: Message = email.message_from_bytes(found[f"{about}/METADATA"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PYPROJECT["project"]["requires-python"]
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(required) == len(PYPROJECT["project"]["dependencies"])
    assert (sources / "README.md").read_text(encoding="utf-8").strip() in found[f"{about}/METADATA"].decode()


@pytest.mark.slow
def test_the_wheel_built_through_the_source_distribution_is_the_same(
    wheel: Path, source_distribution: Path, tmp_path: Path
) -> None:
    """As `python -m build` and package indexes do it."""
    with tarfile.open(source_distribution) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    through, direct = contents(wheel_of(unpacked)), contents(wheel)
    assert through.keys() == direct.keys()
    assert {name for name in direct if direct[name] != through[name] and ".dist-info/" not in name} == set()


@pytest.mark.slow
def test_an_installed_wheel_answers_with_its_demo(wheel: Path, tmp_path: Path) -> None:
    """In a process that sees the wheel before this repository."""
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q", "--target", site, wheel, cwd=tmp_path)
    code = (
        "import embedllm, embedllm.cli.main, embedllm.export, embedllm.export.architectures as a; "
        "print(embedllm.__file__); "
        "print(a.families()); llm = embedllm.load('demo'); llm.package.check(); print(llm.package.folder)"
    )
    module, families, demo = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site)).splitlines()
    assert Path(module).is_relative_to(site)
    assert Path(demo) == site / "embedllm" / "demo"
    assert "qwen3" in families


@pytest.mark.real
def test_the_wheel_for_browsers_is_built_in_a_new_environment(tmp_path: Path) -> None:
    """Which has an old setuptools, or none: pip fetches the one that pyproject.toml asks for."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    run(python, ROOT / "tools" / "make_web_wheel.py", tmp_path / "out", cwd=tmp_path)
    (wheel,) = (tmp_path / "out").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert "embedllm/web/loading.py" in archive.namelist()
