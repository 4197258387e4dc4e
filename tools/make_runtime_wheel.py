"""Writes the wheel of embedllm-runtime: what an application needs to load exported folders and to generate.

    python -m tools.make_runtime_wheel dist

Of the same tree and version as embedllm, and imported as `embedllm`; install one of the two. Without the demo model,
the exporter, the command line, the evaluation and the browser's half, and without what only these depend on. A
placeholder in their place raises MissingPart, which says what to install. Needs packaging, and what make_web_wheel.py
needs.
"""

from __future__ import annotations

import argparse
import email
import re
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement

from tools.make_web_wheel import build, write

NAME = "embedllm-runtime"
LEFT_OUT = ("cli", "evaluation", "export", "web")  # packages of embedllm
DROPPED = ("click", "filelock", "huggingface-hub", "onnx", "rich")  # dependencies; tokenizers brings some of them
EXTRAS = {  # of pyproject.toml, with what DROPPED takes from them
    "genai": (),
    "lora": ("onnx>=1.17",),  # adapters on the CPU
    "openvino": (),
    "webgpu": ("onnx>=1.17",),  # its check of the driver
}
SUMMARY = "Runs language models that embedllm exported, inside your application: no exporter, no command line"
_PLACEHOLDER = '''"""Not part of embedllm-runtime."""

from embedllm.errors import MissingPart

raise MissingPart(
    "'embedllm.{name}' is not part of embedllm-runtime, which only runs folders that were exported. Where you need it: "
    "pip uninstall embedllm-runtime, then pip install embedllm"
)
'''


def main(out: Path) -> Path:
    """The wheel's path."""
    with tempfile.TemporaryDirectory() as work:
        with zipfile.ZipFile(build(Path(work))) as archive:
            kept = runtime({name: archive.read(name) for name in archive.namelist()})
        about = next(name for name in kept if name.endswith(".dist-info/METADATA"))
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{about.removesuffix('.dist-info/METADATA')}-py3-none-any.whl"
        write(kept, path)
    return path


def runtime(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Of a wheel's files those of the runtime, under its name."""
    found: dict[str, bytes] = {}
    for name, data in contents.items():
        folder, _, rest = name.partition("/")
        if rest.split("/")[0] in (*LEFT_OUT, "demo", "__main__.py") or rest == "RECORD":
            continue
        if folder.endswith(".dist-info"):
            name = f"{_folder_name()}-{folder.partition('-')[2]}/{rest}"
        if rest == "METADATA":
            data = _metadata(data.decode()).encode()
        elif rest == "entry_points.txt":
            data = _entry_points(data.decode()).encode()
        found[name] = data
    for part in LEFT_OUT:
        found[f"embedllm/{part}/__init__.py"] = _PLACEHOLDER.format(name=part).encode()
    return dict(sorted(found.items()))


def _entry_points(text: str) -> str:
    """Without the command line."""
    sections = ("[" + section for section in text.split("[")[1:])
    return "".join(section for section in sections if not section.startswith("[console_scripts]"))


def _folder_name() -> str:
    return NAME.replace("-", "_")


def _metadata(text: str) -> str:
    """The metadata of the whole distribution, with its own name, summary and dependencies."""
    fields: list[tuple[str, str]] = []
    for key, value in email.message_from_string(text).items():  # without the payload: the README is about the whole
        if key == "Name":
            fields.append((key, NAME))
        elif key == "Summary":
            fields.append((key, SUMMARY))
        elif not (
            key == "Description-Content-Type"
            or (key == "Provides-Extra" and value not in EXTRAS)
            or (key == "Requires-Dist" and not _is_kept(Requirement(value)))
        ):
            fields.append((key, value))
    for extra, packages in EXTRAS.items():
        if ("Provides-Extra", extra) not in fields:
            fields.append(("Provides-Extra", extra))
        fields += [("Requires-Dist", f'{package}; extra == "{extra}"') for package in packages]
    return "".join(f"{key}: {value}\n" for key, value in fields)


def _is_kept(requirement: Requirement) -> bool:
    extra = re.search(r'extra == "([^"]+)"', str(requirement.marker))
    return extra[1] in EXTRAS if extra else requirement.name not in DROPPED


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    made = main(parser.parse_args().folder)
    sys.stderr.write(f"{made}: {made.stat().st_size / 1e3:.0f} kB\n")
