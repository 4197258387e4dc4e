"""What a Model gives for many kinds of calls, as JSON: run on the desktop and in Pyodide, over the same made-up logits.

Standard library only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import embedllm
from embedllm import Cancel, ContextFull, Sampling, TemplateError

if TYPE_CHECKING:
    from embedllm import Completion, Model

SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "plain": Sampling(seed=1),
    "cold": Sampling(temperature=0.3, seed=2),
    "top_k": Sampling(temperature=0.8, top_k=5, seed=3),
    "top_p": Sampling(temperature=0.9, top_p=0.8, seed=4),
    "wide": Sampling(temperature=3, top_p=0.99, seed=5),
    "min_p": Sampling(temperature=1.5, min_p=0.05, seed=6),
    "typical": Sampling(typical_p=0.5, seed=7),
    "typical_top_p": Sampling(typical_p=0.6, top_p=0.9, seed=8),
    "penalties": Sampling(temperature=0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4),
    "biased": Sampling(top_p=0.9, logit_bias={97: 5, 98: float("-inf")}, repetition_penalty=0.8, seed=9),
}


async def outcomes(llm: Model) -> dict[str, object]:
    """By a name of what was asked, what came."""
    found: dict[str, object] = {}
    for name, sampling in SAMPLINGS.items():
        found[name] = told(await llm.agenerate("the quick", sampling, max_tokens=40, logprobs=3, stop_tokens=[]))
    found["defaults"] = repr(llm.request([1, 2, 3]))
    found["stop"] = told(await llm.agenerate("ab", Sampling(seed=3), max_tokens=200, stop=["e", "\n"]))
    found["stop token"] = told(await llm.agenerate("ab", Sampling(seed=4), max_tokens=200, stop_tokens=range(0, 40)))
    chunks = [chunk async for chunk in llm.astream("stream", Sampling(seed=5, temperature=0.7), max_tokens=30)]
    found["stream"] = [(chunk.text, chunk.token, chunk.finish_reason) for chunk in chunks]
    found["long"] = told(await llm.agenerate([7] * 50, Sampling(seed=11), max_tokens=3))  # in pieces
    found["chat"] = told(await llm.agenerate([{"role": "user", "content": "hi"}], Sampling(seed=6), max_tokens=9))
    found["prompt"] = llm.prompt([{"role": "system", "content": "Ärgerlich 🌍"}, {"role": "user", "content": "x"}])
    found["text"] = llm.tokenizer.encode("Ärger 🌍", special=True)
    talk = llm.conversation("be brief")
    found["first turn"] = told(await talk.asay("hello", Sampling(seed=7), max_tokens=8))
    found["second turn"] = told(await talk.asay("again", Sampling(seed=8), max_tokens=8))
    found["history"] = list(talk.messages)
    found["full"] = await failed(llm, [5] * llm.context)
    found["wrong token"] = await failed(llm, [99999])
    found["no roles"] = await failed(llm, [{"role": "user", "content": "x"}, {"role": "odd", "content": "y"}])
    found["cancelled"] = await cancelled(llm)
    found["left"] = await left(llm)
    found["after that"] = told(await llm.agenerate("the quick", Sampling(seed=1), max_tokens=10))
    found["version"] = embedllm.__version__
    return found


def told(completion: Completion) -> dict[str, object]:
    """A completion in JSON types, without its times."""
    return {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "logprobs": list(completion.logprobs),
        "top": [[(picked.token, picked.logprob) for picked in step] for step in completion.top_logprobs],
        "ended": [completion.finish_reason, completion.stopped_by],
        "counts": [completion.statistics.prompt_tokens, completion.statistics.cached_tokens,
                   completion.statistics.tokens],
    }  # fmt: skip


async def failed(llm: Model, prompt: object) -> list[str]:
    """What went wrong."""
    try:
        await llm.agenerate(prompt, max_tokens=3)  # type: ignore[arg-type]  # wrong on purpose
    except (ContextFull, TemplateError, ValueError) as error:
        return [type(error).__name__, str(error)]
    return ["nothing"]


async def cancelled(llm: Model) -> list[object]:
    """A stream that its reader ends after three chunks; on the desktop a few more were computed by then."""
    cancel, kept = Cancel(), []
    async for chunk in llm.astream("cancel", Sampling(seed=10), max_tokens=300, min_tokens=300, cancel=cancel):
        kept.append((chunk.text, chunk.token, chunk.finish_reason))
        if len(kept) == 3:
            cancel.cancel()
    return [*kept[:3], kept[-1][1:]]


async def left(llm: Model) -> list[int | None] | list[str]:
    """A task that is cancelled, and what comes from the sequence then."""
    taken: list[int | None] = []

    async def read() -> None:
        async for chunk in llm.astream("left", Sampling(seed=9), max_tokens=400):
            taken.append(chunk.token)
            await asyncio.sleep(0)

    task = asyncio.ensure_future(read())
    while len(taken) < 4:
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return taken[:4]
    return ["not cancelled"]
