"""Trains the model on pictures that are made on the way, and evaluates it on others.

    python -m tools.train_seeing_model.train PREPARED OUT --seconds 150

PREPARED: what prepare.py wrote. OUT: the checkpoint. It is saved every 30 seconds, whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tools.train_seeing_model.evaluation import evaluate
from tools.train_seeing_model.model import SeeingModel, Sizes
from tools.train_seeing_model.optimizer import Muon
from tools.train_seeing_model.questions import SYSTEM, turns
from tools.train_seeing_model.rendering import Renderer, normalized, scene_tensors
from tools.train_seeing_model.scenes import Composer, Fonts, Split
from tools.train_seeing_model.text_format import Layout

STARTED = time.monotonic()  # the limit counts from here
LENGTH = 192  # tokens of a row: the picture and about five turns
SAVE_EVERY_S = 30.0
TEXT = ("ids", "groups", "positions", "labels")


class Batches(IterableDataset[dict[str, Tensor]]):
    """Endless batches of scenes and their turns; each worker makes others."""

    def __init__(self, prepared: Path, size: int, seed: int) -> None:
        self._prepared, self._size, self._seed = prepared, size, seed

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        random = Random(self._seed * 1000 + (worker.id if worker else 0))
        torch.set_num_threads(1)
        fonts = Fonts(self._prepared / "sprites.npz")
        composer = Composer(fonts, Split(fonts.trained), random)
        layout = Layout(Tokenizer.from_file(str(self._prepared / "checkpoint" / "tokenizer.json")))
        while True:
            scenes = [composer.scene() for _ in range(self._size)]
            rows = []
            for scene in scenes:
                is_chat = random.random() < 0.25
                asked = [
                    (one.question, one.answer, one.sees) for one in turns(scene, random) if one.sees or not is_chat
                ]
                system = random.choice(SYSTEM) if is_chat and random.random() < 0.3 else ""
                rows.append(layout.rows(asked, LENGTH, is_chat=is_chat, system=system))
            texts = {name: torch.tensor([row[at] for row in rows], dtype=torch.int16) for at, name in enumerate(TEXT)}
            yield {**scene_tensors(scenes), **texts}


def save(model: SeeingModel, prepared: Path, out: Path) -> None:
    """Writes the checkpoint; what was there is replaced at once."""
    out.mkdir(parents=True, exist_ok=True)
    for path in (prepared / "checkpoint").iterdir():
        if not (out / path.name).exists():
            shutil.copyfile(path, out / path.name)
    save_file(model.checkpoint(), out / "model.part", metadata={"format": "pt"})
    (out / "model.part").replace(out / "model.safetensors")


def rate(share: float) -> float:
    """Of the learning rate, after this share of the time: a short rise, then a linear fall over the last 60 %."""
    return min(share / 0.02, 1.0, max(1 - share, 0.0) / 0.6 + 0.002)


def loss_of(model: SeeingModel, renderer: Renderer, batch: dict[str, Tensor], device: torch.device) -> Tensor:
    """The mean cross-entropy of the answers' tokens."""
    on_device = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
    ids, groups, positions, labels = (on_device[name].long() for name in TEXT)
    # the head reads only states that predict an answer; their places are found on the CPU, which does not wait
    answered = (batch["labels"].flatten() >= 0).nonzero()[:, 0].to(device, non_blocking=True)
    pixels = normalized(renderer.pictures(on_device))
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        states = model(model.features(pixels), ids, groups, positions)
        logits = model.logits(states.flatten(0, 1)[answered])
    return functional.cross_entropy(logits.float(), labels.flatten()[answered])


def train(options: argparse.Namespace, device: torch.device) -> SeeingModel:
    prepared: Path = options.prepared
    loader = iter(DataLoader(Batches(prepared, options.batch, options.seed), batch_size=None,
                             num_workers=options.workers, prefetch_factor=3 if options.workers else None,
                             pin_memory=device.type == "cuda"))  # fmt: skip
    batch = next(loader)  # workers start before CUDA does
    torch.manual_seed(options.seed)
    sizes = Sizes(**json.loads((prepared / "sizes.json").read_text(encoding="utf-8")))
    model, renderer = SeeingModel(sizes).to(device), Renderer(prepared / "sprites.npz", device)
    if options.compile:
        model.compile_layers()
    matrices = [value for name, value in model.named_parameters() if value.ndim == 2 and "embed" not in name]
    others = [value for name, value in model.named_parameters() if value.ndim != 2 or "embed" in name]
    muon = Muon(matrices, rate=0.02)
    adam = torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=device.type == "cuda")
    began, saved, step = 0.0, time.monotonic(), 0
    while step != options.steps:
        if step == 2:  # what is before is compiling
            began = time.monotonic()
        share = (time.monotonic() - began) / (STARTED + options.seconds - began) if step >= 2 else 0.0
        if share >= 1:
            break
        scale = rate(share) if step >= 2 else 0.0
        for group in adam.param_groups:
            group["lr"] = 3e-3 * scale
        loss = loss_of(model, renderer, batch, device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(scale)
        adam.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if step == 1 or step % 100 == 0:
            print(f"{time.monotonic() - STARTED:.1f} s: step {step}, loss {loss.item():.3f}", flush=True)
        if time.monotonic() - saved > SAVE_EVERY_S:
            save(model, prepared, options.out)
            saved = time.monotonic()
        batch = next(loader)
    print(f"{time.monotonic() - STARTED:.1f} s: {step} steps, {step * options.batch:,} pictures", flush=True)
    save(model, prepared, options.out)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=150, help="of training, from the start of the program")
    parser.add_argument("--steps", type=int, default=-1, help="at most")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--workers", type=int, default=13, help="processes that make batches")
    parser.add_argument("--evaluated", type=int, default=1000, help="pictures of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="layers, by torch.compile")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = train(options, device)
    model = SeeingModel(trained.sizes).to(device)  # without the compiled layers, whose shapes are fixed
    model.load_state_dict(trained.state_dict())
    results = evaluate(model, options.prepared, device, options.evaluated)
    (options.out / "evaluation.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
