"""Prompts that the model draws itself: what follows where a user's turn begins (Xu et al. 2024, arXiv:2406.08464)."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
import transformers
from prompts import Prompt, plain
from torch import Tensor

_ROWS, _LONGEST = 2048, 128  # of a batch; tokens that are drawn
_TEMPERATURE = 0.8  # sampling the likeliest of 49,152 tokens alone would sort them at each step, which takes longer
_MARK = "\ufffc"  # in no template
_OPENINGS = {  # of half of the prompts; the model goes on from there
    "code": "Write a|Write a Python function|Write a JavaScript function|Write a shell script|Write a class|How do I "
    "write|Write a program|Create a|Implement|Fix this code:",
    "summary": "Summarize|Summarize:|Summarize the following text|Summarize this article:|What is this about?\n|"
    "Give me the main points of|Rewrite",
    "question": "What is|What are|Why|Why do|How does|How do|Who|When|Explain|What is the difference between|Describe|"
    "Tell me about|Which",
    "translation": "Translate|Translate to French:|Translate to German:|Translate to Spanish:|Translate to Italian:|"
    "How do you say|Translate the following",
    "story": "Write a short story|Write a story about|Tell me a story|Continue the story:|Once upon a time|Write a "
    "poem|Imagine|Create a character",
    "mathematics": "What is 3|Calculate|A train|A store|A farmer has|Tom has|If a|How many|Solve|There are|Each|"
    "Find the",
    "chat": "Hello|Hi|Hi, can you|Good morning|I am|I have|I feel|I would like to|My|Can you help me|Do you|Thanks|"
    "What do you think|I'm learning|Let's|Could you|Hey",
    "JSON": "Return a JSON object|Answer in JSON|Give me a JSON|Extract|Extract as JSON:|Convert|Create a JSON|List",
    "repetition": "Repeat|Repeat this:|Say|Write '|Copy|Write the following|Count from",
}  # fmt: skip


@torch.no_grad()
def own_prompts(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    count: int,
    *,
    stop: Sequence[int],
    measured: Collection[str],
    seed: int,
) -> list[Prompt]:
    """Of that many drawn user's turns those that end by themselves, each once, and none that a benchmark asks.

    stop: tokens that end a turn. measured: the words of a benchmark's prompts (prompts.plain).
    """
    before, behind = _around(tokenizer)
    chooser, seen = random.Random(seed), set(measured)
    openings = [(kind, each) for kind, text in _OPENINGS.items() for each in text.split("|")]
    asked = [chooser.choice(openings) if number % 2 else ("own", "") for number in range(count)]
    begun = sorted(((kind, _encoded(tokenizer, before + text)) for kind, text in asked), key=lambda each: len(each[1]))
    prompts: list[Prompt] = []
    for at in range(0, len(begun), _ROWS):
        rows = begun[at : at + _ROWS]
        for (kind, _), turn in zip(rows, _drawn(model, [ids for _, ids in rows], stop), strict=True):
            text = tokenizer.decode(turn)
            assert isinstance(text, str)  # of one row
            asks = plain(text.removeprefix(before))
            if asks and asks not in seen:
                seen.add(asks)
                prompts.append(Prompt(kind=kind, tokens=_encoded(tokenizer, text + behind)))
        print(f"{len(prompts):,} own prompts", flush=True)
    return prompts


def _around(tokenizer: transformers.PreTrainedTokenizerBase) -> tuple[str, str]:
    """What a chat has in front of what a user says, and behind it."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False,
                                         add_generation_prompt=True)  # fmt: skip
    assert isinstance(text, str)  # as tokenize=False says
    before, _, behind = text.partition(_MARK)
    return before, behind


def _drawn(model: transformers.PreTrainedModel, begun: list[list[int]], stop: Sequence[int]) -> Iterator[list[int]]:
    """Each with what the model goes on with, the token that ends it left out; nothing where it does not end."""
    longest, pad = max(map(len, begun)), stop[0]
    ids = torch.tensor([[pad] * (longest - len(each)) + each for each in begun], device=model.device)
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in begun], device=model.device)
    generate: Callable[..., Tensor] = model.generate  # type: ignore[assignment]  # a method of a base class
    rows = generate(ids, attention_mask=mask, max_new_tokens=_LONGEST, do_sample=True, temperature=_TEMPERATURE,
                    top_k=0, eos_token_id=list(stop), pad_token_id=pad)[:, longest:].tolist()  # fmt: skip
    for each, row in zip(begun, rows, strict=True):
        end = next((at for at, token in enumerate(row) if token in stop), None)
        yield [] if end is None else [*each, *row[:end]]


def _encoded(tokenizer: transformers.PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)
