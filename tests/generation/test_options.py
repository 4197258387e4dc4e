"""Options by name: which there are, and where they go."""

from __future__ import annotations

import dataclasses

import pytest

from embedllm import Model, Sampling, load
from embedllm.generation.options import SamplingOptions, take_sampling

OWN = Sampling(temperature=0.7, top_k=20)


def test_every_field_of_sampling_is_an_option_of_the_same_type() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(Sampling) if field.init}
    assert fields == {name: hint.__forward_arg__ for name, hint in SamplingOptions.__annotations__.items()}


def test_options_by_name_take_the_place_of_fields() -> None:
    assert take_sampling(None, OWN, {}) == (OWN, {})
    assert take_sampling(None, OWN, {"temperature": 0.2, "max_tokens": 3}) == (
        Sampling(temperature=0.2, top_k=20),
        {"max_tokens": 3},
    )
    assert take_sampling(Sampling(top_p=0.5), OWN, {"seed": 7})[0] == Sampling(top_p=0.5, seed=7)


@pytest.mark.parametrize(
    ("sampling", "options", "error", "text"),
    [
        (None, {"temp": 1}, TypeError, "no option 'temp'. The nearest is 'temperature'."),
        (None, {"max_token": 1}, TypeError, "no option 'max_token'. The nearest is 'max_tokens'."),
        (None, {"max_completion_tokens": 1}, TypeError, r"'max_completion_tokens'\. Here it is max_tokens=\.\.\.\."),
        (None, {"do_sample": False}, TypeError, r"'do_sample'\. Here it is temperature=0, for greedy decoding\."),
        (None, {"stream": True}, TypeError, r"'stream'\. Here it is stream\(\.\.\.\)\."),
        (None, {"system": "a"}, TypeError, r"'system'\. Here it is a message, \{\"role\": \"system\", .*\}\."),
        ({"temperature": 0}, {}, TypeError, "expected an embedllm.Sampling, or give its options by name"),
        (5, {}, TypeError, "sampling is 5"),
        (None, {"top_p": 2}, ValueError, "top_p"),
    ],
)
def test_wrong_options_say_what_there_is(
    sampling: object, options: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        take_sampling(sampling, OWN, options)  # type: ignore[arg-type]  # which is what is shown


@pytest.fixture(scope="module")
def llm() -> Model:
    return load("demo", device="reference")


def test_every_call_takes_them(llm: Model) -> None:
    greedy, prompt = Sampling(temperature=0), [{"role": "user", "content": "list files"}]
    expected = llm.chat(prompt, greedy, max_tokens=4).text
    assert llm.chat(prompt, temperature=0, max_tokens=4).text == expected
    assert llm.generate(prompt, temperature=0, max_tokens=4).text == expected
    assert "".join(chunk.text for chunk in llm.stream(prompt, temperature=0, max_tokens=4)) == expected
    assert [reply.text for reply in llm.generate_batch([prompt], temperature=0, max_tokens=4)] == [expected]
    assert llm.conversation().say("list files", temperature=0, max_tokens=4).text == expected
    first, second = llm.generate_n(prompt, 2, temperature=2.0, seed=3, max_tokens=8)
    assert first.tokens == llm.generate(prompt, temperature=2.0, seed=3, max_tokens=8).tokens
    assert second.tokens == llm.generate(prompt, temperature=2.0, seed=4, max_tokens=8).tokens


def test_calls_refuse_what_is_not_theirs(llm: Model) -> None:
    with pytest.raises(TypeError, match=r"no option 'temprature'\. The nearest is 'temperature'"):
        llm.generate("a", temprature=1)  # type: ignore[call-arg]  # misspelt
    with pytest.raises(ValueError, match="beam_search has no 'temperature'"):
        llm.beam_search("a", 2, temperature=1.0)
    with pytest.raises(ValueError, match="stop is 5; expected a text"):
        llm.generate("a", stop=5)  # type: ignore[arg-type]  # wrong
