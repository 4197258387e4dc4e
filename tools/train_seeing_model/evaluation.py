"""Exact answers to questions about pictures that training did not show."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.train_seeing_model import words
from tools.train_seeing_model.model import SeeingModel
from tools.train_seeing_model.questions import Turn, turns
from tools.train_seeing_model.rendering import Renderer, normalized, scene_tensors
from tools.train_seeing_model.scenes import HELD_OUT_PAIRS, Composer, Fonts, Scene, Split
from tools.train_seeing_model.text_format import END, PAD, Layout

_MOST_TOKENS = 64  # of an answer
_ROWS = 1024  # at a time


@torch.no_grad()
def answers(model: SeeingModel, pixels: Tensor, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers, without a KV cache: the model is small, and rows end at different places."""
    device = pixels.device
    width = max(map(len, prompts)) + _MOST_TOKENS
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in prompts], device=device)
    ends = torch.tensor([len(row) for row in prompts], device=device)
    groups, positions = torch.zeros_like(ids), torch.arange(width, device=device).expand(len(ids), -1)
    rows, is_done = torch.arange(len(ids), device=device), torch.zeros(len(ids), dtype=torch.bool, device=device)
    features = model.features(pixels)
    for _ in range(_MOST_TOKENS):
        states = model(features, ids, groups, positions)
        best = model.logits(states[rows, ends - 1]).argmax(-1)
        ids[rows, ends] = torch.where(is_done, PAD, best)
        is_done |= best == END
        ends += 1
        if is_done.all():
            break
    written = [row[len(prompt) :] for row, prompt in zip(ids.tolist(), prompts, strict=True)]
    return [[one for one in row if one not in (END, PAD)] for row in written]


def splits(fonts: Fonts) -> dict[str, Split]:
    """What each set of pictures shows."""
    return {
        "new pictures": Split(fonts.trained),
        "new words": Split(fonts.trained, of_words=tuple(words.HELD_OUT), random_words=0.0),
        "new fonts": Split(fonts.held_out),
        "new pairs": Split(fonts.trained, pairs=HELD_OUT_PAIRS),
    }


def sampled(fonts: Fonts, split: Split, count: int, seed: int) -> list[tuple[Scene, Turn]]:
    """Pictures and questions, two of a picture."""
    random = Random(seed)
    composer = Composer(fonts, split, random)
    cases: list[tuple[Scene, Turn]] = []
    while len(cases) < count:
        scene = composer.scene()
        cases += [(scene, turn) for turn in turns(scene, random) if turn.sees][:2]
    return cases[:count]


def score(name: str, cases: list[tuple[Scene, Turn]], answered: list[str]) -> dict[str, list[int]]:
    """Exact answers and questions, by task; prints them and a few mistakes."""
    asked = Counter(turn.task for _, turn in cases)
    right = Counter(turn.task for (_, turn), text in zip(cases, answered, strict=True) if text == turn.answer)
    by_task = {task: [right[task], asked[task]] for task in sorted(asked)}
    wrong = [f"{turn.question} -> {text} | {turn.answer}"
             for (_, turn), text in zip(cases, answered, strict=True) if text != turn.answer]  # fmt: skip
    print(name, f"{sum(right.values())}/{len(cases)}", by_task, *wrong[:8], sep="\n  ", flush=True)
    return by_task


def evaluate(model: SeeingModel, prepared: Path, device: torch.device, count: int) -> dict[str, dict[str, list[int]]]:
    """score() of each set, for count questions each."""
    fonts, renderer = Fonts(prepared / "sprites.npz"), Renderer(prepared / "sprites.npz", device)
    tokenizer = Tokenizer.from_file(str(prepared / "checkpoint" / "tokenizer.json"))
    layout = Layout(tokenizer)
    results = {}
    for number, (name, split) in enumerate(splits(fonts).items()):
        cases, answered = sampled(fonts, split, count, -1 - number), []
        for start in range(0, count, _ROWS):
            part = cases[start : start + _ROWS]
            tensors = {key: value.to(device) for key, value in scene_tensors([scene for scene, _ in part]).items()}
            pixels = normalized(renderer.pictures(tensors))
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                ids = answers(model, pixels, [layout.prompt(turn.question) for _, turn in part])
            answered += [tokenizer.decode(row) for row in ids]
        results[name] = score(name, cases, answered)
    return results
