"""The model's own replies to prompts, made in large batches, and batches of them to train on."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import transformers
from prompts import Prompt
from torch import Tensor

T = TypeVar("T")
_TEMPERATURES = (0.0, 0.0, 0.7, 1.0)  # in turn; 0: greedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A prompt and what the model has said to it, the token that ends it included."""

    kind: str
    tokens: list[int]
    start: int  # of the reply


@torch.no_grad()
def replies_to(
    model: transformers.PreTrainedModel,
    prompts: Sequence[Prompt],
    *,
    temperature: float,
    stop: Sequence[int],
    most: int,
) -> list[Reply]:
    """One batch, filled up in front. most: tokens of a reply."""
    longest, pad = max(len(prompt.tokens) for prompt in prompts), stop[0]
    ids = torch.tensor([[pad] * (longest - len(prompt.tokens)) + prompt.tokens for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt.tokens)) + [1] * len(prompt.tokens) for prompt in prompts])
    sampled = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    made = model.generate(  # type: ignore[operator]  # a method of a base class
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=most,
        eos_token_id=list(stop),
        pad_token_id=pad,
        **sampled,
    )
    assert isinstance(made, Tensor)  # as return_dict_in_generate is off
    return [_reply(prompt, row, stop) for prompt, row in zip(prompts, made[:, longest:].tolist(), strict=True)]


def _reply(prompt: Prompt, made: list[int], stop: Sequence[int]) -> Reply:
    end = next((at + 1 for at, token in enumerate(made) if token in stop), len(made))
    return Reply(kind=prompt.kind, tokens=[*prompt.tokens, *made[:end]], start=len(prompt.tokens))


def all_replies(
    model: transformers.PreTrainedModel,
    prompts: Sequence[Prompt],
    *,
    cached_tokens: int,
    minutes: float,
    stop: Sequence[int],
    most: int,
    seed: int,
) -> list[Reply]:
    """Replies to all prompts again and again until the time is over, batches greedy and sampled in turn.

    cached_tokens: of a batch, prompts and replies. most: tokens of a reply.
    """
    chooser, began_s, turn = random.Random(seed), time.monotonic(), 0
    made: list[Reply] = []
    while True:
        order = sorted(prompts, key=lambda prompt: len(prompt.tokens) + chooser.random())
        groups = prompt_groups(order, cached_tokens, most)
        chooser.shuffle(groups)
        for group in groups:
            if time.monotonic() - began_s > 60 * minutes and made:
                return made
            made += replies_to(model, group, temperature=_TEMPERATURES[turn % len(_TEMPERATURES)], stop=stop,
                                 most=most)  # fmt: skip
            turn += 1
            print(f"{len(made):,} replies after {time.monotonic() - began_s:.0f} s", flush=True)


def prompt_groups(prompts: Sequence[Prompt], cached_tokens: int, most: int) -> list[list[Prompt]]:
    """Batches of prompts, the shortest first, that have at most that number of tokens, with replies of `most`."""
    return _groups(prompts, [len(prompt.tokens) + most for prompt in prompts], cached_tokens)


def batches(replies: Sequence[Reply], tokens: int, *, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Without an end: ids [B, T], filled up behind, and the place in each at which its reply starts and ends, [B, 2].

    tokens: of a batch, about. Those of a batch are of about the same length.
    """
    chooser = random.Random(seed)
    while True:
        order = sorted(replies, key=lambda reply: len(reply.tokens) * (1 + 0.1 * chooser.random()))
        groups = _groups(order, [len(reply.tokens) for reply in order], tokens)
        chooser.shuffle(groups)
        yield from (padded(group) for group in groups)


def _groups(items: Sequence[T], lengths: Sequence[int], tokens: int) -> list[list[T]]:
    """Runs of items that have about that number of tokens, each filled up to the longest, which is the last."""
    groups: list[list[T]] = [[]]
    for item, length in zip(items, lengths, strict=True):
        if groups[-1] and (len(groups[-1]) + 1) * length > tokens:
            groups.append([])
        groups[-1].append(item)
    return groups


def in_groups(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    yield from (items[at : at + size] for at in range(0, len(items), size))


def padded(group: Sequence[Reply]) -> tuple[Tensor, Tensor]:
    longest = max(len(reply.tokens) for reply in group)
    ids = torch.tensor([reply.tokens + [0] * (longest - len(reply.tokens)) for reply in group])
    return ids, torch.tensor([[reply.start, len(reply.tokens)] for reply in group])
