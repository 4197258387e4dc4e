"""A loaded model's replies under response_format, in every call that makes one, on real CPU sessions."""

from __future__ import annotations

import asyncio
import enum
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest

import embedllm
from embedllm import Sampling
from embedllm.generation.options import Speculate
from tests.sampling.structured.test_llguidance import as_format

ASK = [{"role": "user", "content": "list all files"}]
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "maxLength": 8},
        "safe": {"type": "boolean"},
        "n": {"enum": [1, None]},
    },
    "required": ["command", "safe", "n"],
    "additionalProperties": False,
}
FORMAT = as_format(SCHEMA)


@pytest.fixture(scope="module")
def tiny(tiny_package: Callable[..., Path]) -> Iterator[embedllm.Model]:
    with embedllm.load(tiny_package("llama"), device="cpu") as llm:
        yield llm


@pytest.fixture(scope="module")
def demo() -> Iterator[embedllm.Model]:
    with embedllm.load("demo", device="cpu") as llm:
        yield llm


def check(text: str, finish_reason: str | None) -> None:
    assert finish_reason == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)


def test_every_call_follows_the_format(tiny: embedllm.Model) -> None:
    drawn = Sampling(seed=3)
    replies = [
        tiny.generate("hi", drawn, response_format=FORMAT, max_tokens=60),
        tiny.chat(ASK, drawn, response_format=FORMAT, max_tokens=60),
        asyncio.run(tiny.agenerate("hi", drawn, response_format=FORMAT, max_tokens=60)),
    ]
    for reply in replies:
        check(reply.text, reply.finish_reason)
    assert replies[0].text == replies[2].text
    chunks = list(tiny.stream("hi", drawn, response_format=FORMAT, max_tokens=60))
    assert "".join(chunk.text for chunk in chunks) == replies[0].text
    with tiny.conversation() as talk:
        reply = talk.say("hi", Sampling(seed=4), response_format=["yes", "no"])
        assert reply.text in ("yes", "no")
        assert talk.messages[-1] == {"role": "assistant", "content": reply.text}


def test_a_prompt_that_ends_within_a_character_is_no_part_of_the_value(tiny: embedllm.Model) -> None:
    prompt = tiny.tokenizer.encode("😀", special=False)[:-1]
    for seed in range(3):
        reply = tiny.generate(prompt, seed=seed, temperature=1.0, response_format=["yes", "no"])
        assert reply.text in ("yes", "no")


@pytest.mark.parametrize("speculate", ["lookup", "off"])
def test_guessed_tokens_follow_the_format_too(demo: embedllm.Model, speculate: Speculate) -> None:
    for seed in range(5):
        sampling = Sampling(seed=seed, temperature=1.5)
        reply = demo.chat(ASK, sampling, response_format=FORMAT, speculate=speculate)
        check(reply.text, reply.finish_reason)


def test_the_demo_model_follows_each_kind(demo: embedllm.Model) -> None:
    assert isinstance(json.loads(demo.chat(ASK, response_format={"type": "json_object"}, max_tokens=400).text), dict)
    assert demo.chat(ASK, response_format=["ls", "dir"]).text in ("ls", "dir")
    assert re.fullmatch(r"\d{4}-\d\d", demo.chat(ASK, response_format=re.compile(r"\d{4}-\d\d")).text)
    lark = 'start: "ls" (" " FLAG)?\nFLAG: /-[a-z]/'
    assert re.fullmatch("ls( -[a-z])?", demo.chat(ASK, response_format={"type": "lark", "lark": lark}).text)


def test_a_reply_that_is_cut_off_says_so(tiny: embedllm.Model) -> None:
    reply = tiny.generate("hi", response_format=FORMAT, max_tokens=3)
    assert reply.finish_reason == "length"
    with pytest.raises(ValueError, match=r"line 1"):
        json.loads(reply.text)


def test_what_cannot_be_followed_is_refused_before_anything_runs(tiny: embedllm.Model) -> None:
    with pytest.raises(ValueError, match="'uniqueItems' at # is not supported"):
        tiny.stream("hi", response_format=as_format({"type": "array", "uniqueItems": True}))


def test_a_discriminated_union_of_pydantic_is_followed(tiny: embedllm.Model) -> None:
    pydantic = pytest.importorskip("pydantic")
    cat, dog = (pydantic.create_model(kind, kind=(Literal[kind], ...)) for kind in ("cat", "dog"))
    pet = pydantic.create_model("Pet", pet=(Annotated[cat | dog, pydantic.Field(discriminator="kind")], ...))
    assert '"oneOf"' in json.dumps(pet.model_json_schema())
    reply = tiny.generate("hi", response_format=pet, max_tokens=100)
    assert reply.parse(pet).pet.kind in ("cat", "dog")


def test_a_pydantic_class_reads_its_reply(tiny: embedllm.Model) -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", when=(float, ...))
    answer = pydantic.create_model(
        "Answer", command=(str, pydantic.Field(max_length=9)), inner=(list[inner] | None, None)
    )
    for seed in range(5):
        reply = tiny.generate("hi", Sampling(seed=seed), response_format=answer, max_tokens=90)
        if reply.finish_reason == "stop":
            answer.model_validate_json(reply.text)


class Kind(enum.Enum):
    READS = "reads"
    WRITES = "writes"


@dataclass
class Effect:
    kind: Kind
    files: list[Effect]
    undo: bool | None = None


def test_replies_are_values_of_the_class_that_was_given(tiny: embedllm.Model) -> None:
    whole = 0
    for seed in range(8):
        assert isinstance(tiny.generate("hi", Sampling(seed=seed), response_format=Kind).parse(Kind), Kind)
        reply = tiny.generate("hi", Sampling(seed=seed), response_format=Effect, max_tokens=90)
        if reply.finish_reason == "stop":
            whole += 1
            effect = reply.parse(Effect)
            assert isinstance(effect, Effect)
            assert isinstance(effect.kind, Kind)
    assert whole
