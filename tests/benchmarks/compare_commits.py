"""Whether two checkouts export the same bytes and compute the same numbers: before and after a refactoring.

    python tests/benchmarks/compare_commits.py sources FOLDER              # every family's tiny checkpoint; needs torch
    python tests/benchmarks/compare_commits.py compare OLD NEW FOLDER      # two checkouts, and what the first wrote

Each checkout exports every source by its own code, with the default recipe and with 16 bits, in a process of its own,
and answers one prompt greedily on each device. Compared are the weights (every stored tensor's bytes, in file order;
names may change), the greedy tokens, and the log-probabilities of the four best tokens of each step, as float64.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

DEVICES = ("reference", "cpu", "openvino")
STEPS = 12
TEXT = "List all files that were changed today, and sort them by size."
EXACT = 0.0  # log-probabilities have to be equal bit for bit


def make_sources(folder: Path) -> None:
    """The checkpoints of tests/support/families.py, and three of them as GGUF files."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.support.families import FAMILIES, make_checkpoint
    from tests.support.gguf_files import write_gguf

    for name, case in FAMILIES.items():
        made = folder / name.replace(" ", "_").replace("/", "_")
        if not made.exists():
            make_checkpoint(made, case)
    for name, kind in (("llama", "Q4_0"), ("qwen3", "Q8_0"), ("gemma3_text", "F16")):
        if (folder / name).exists() and not (folder / f"{name}.gguf").exists():
            write_gguf(folder / f"{name}.gguf", folder / name, kind=kind)


def dump(sources: Path, out: Path) -> None:
    """Runs in one checkout: writes what it exports and answers of each source as a line of JSON."""
    import embedllm
    from embedllm.export import Recipe, convert

    with out.open("w", encoding="utf-8") as lines:
        for source in sorted(path for path in sources.iterdir() if path.is_dir() or path.suffix == ".gguf"):
            for bits in (None, 16):
                package = out.parent / f"{out.stem}-{source.name}-{bits}"
                line: dict[str, object] = {"source": source.name, "bits": bits}
                try:
                    convert(source, package, Recipe(bits=bits))
                    line["weights"] = _stored(package / "weights.safetensors")
                    line["replies"] = {device: _reply(embedllm, package, device) for device in DEVICES}
                except embedllm.EmbedError as error:
                    line["error"] = type(error).__name__
                print(json.dumps(line), file=lines, flush=True)


def _stored(path: Path) -> str:
    """A hash of the tensors in file order: types, shapes and bytes."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = {name: entry for name, entry in json.loads(data[8:end]).items() if name != "__metadata__"}
    entries = sorted((*entry["data_offsets"], entry["dtype"], entry["shape"]) for entry in header.values())
    digest = hashlib.sha256()
    for start, stop, dtype, shape in entries:
        digest.update(f"{dtype} {shape}".encode() + data[end + start : end + stop])
    return digest.hexdigest()


def _reply(embedllm: object, package: Path, device: str) -> object:
    try:
        with embedllm.load(package, device=device, prefix_cache=0) as model:  # type: ignore[attr-defined]  # the checkout's
            sampling = embedllm.Sampling(temperature=0)  # type: ignore[attr-defined]
            reply = model.generate(TEXT, max_tokens=STEPS, sampling=sampling, logprobs=4)
            return {
                "tokens": list(reply.tokens),
                "logprobs": [[pick.logprob for pick in step] for step in reply.top_logprobs],
            }
    except embedllm.EmbedError as error:  # type: ignore[attr-defined]
        return type(error).__name__


def compare(old: Path, new: Path, sources: Path) -> int:
    """How many sources differ; prints each difference."""
    found = []
    for name, checkout in (("old", old), ("new", new)):
        out = sources.parent / f"{name}.jsonl"
        environment = {**os.environ, "PYTHONPATH": str(checkout), "EMBEDLLM_TUNED": "off"}
        command = [sys.executable, str(Path(__file__).resolve()), "dump", str(sources.resolve()), str(out.resolve())]
        subprocess.run(command, check=True, cwd=checkout, env=environment)
        lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
        found.append({(line.pop("source"), line.pop("bits")): line for line in lines})
    before, after = found
    different = 0
    for key in sorted(before.keys() | after.keys(), key=str):
        differences = list(_differences(before.get(key), after.get(key)))
        different += bool(differences)
        for difference in differences:
            print(*key, difference)
    print(f"{len(before)} exports compared, {different} differ")
    return different


def _differences(one: dict[str, object] | None, other: dict[str, object] | None) -> list[str]:
    if one is None or other is None:
        return ["is only on one side"]
    found = [name for name in ("error", "weights") if one.get(name) != other.get(name)]
    replies, others = one.get("replies") or {}, other.get("replies") or {}
    for device in DEVICES:
        a, b = replies.get(device), others.get(device)  # type: ignore[attr-defined]  # JSON
        if isinstance(a, dict) and isinstance(b, dict):
            if a["tokens"] != b["tokens"]:
                found.append(f"{device}: tokens")
            elif (worst := _apart(a["logprobs"], b["logprobs"])) > EXACT:
                found.append(f"{device}: log-probabilities up to {worst:.2g} apart")
        elif a != b:
            found.append(
                f"{device}: {a if isinstance(a, str) else 'reply'} became {b if isinstance(b, str) else 'reply'}"
            )
    return found


def _apart(one: list[list[float]], other: list[list[float]]) -> float:
    pairs = (pair for a, b in zip(one, other, strict=True) for pair in zip(a, b, strict=True))
    return max((abs(a - b) for a, b in pairs if math.isfinite(a) or math.isfinite(b)), default=0.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("sources").add_argument("folder", type=Path)
    of_dump = commands.add_parser("dump")
    of_dump.add_argument("sources", type=Path)
    of_dump.add_argument("out", type=Path)
    of_compare = commands.add_parser("compare")
    for argument in ("old", "new", "sources"):
        of_compare.add_argument(argument, type=Path)
    given = parser.parse_args()
    if given.command == "sources":
        make_sources(given.folder)
    elif given.command == "dump":
        dump(given.sources, given.out)
    else:
        sys.exit(1 if compare(given.old, given.new, given.sources) else 0)
