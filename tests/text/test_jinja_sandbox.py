"""The sandbox of chat templates: attacks, errors with their line, and the names that templates rely on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from embedllm.errors import TemplateError
from embedllm.text.jinja_sandbox import SandboxedTemplate
from embedllm.types import JSON


def render(source: str, *, clock: Callable[[], datetime] = datetime.now, **variables: JSON) -> str:
    return SandboxedTemplate(source, clock=clock).render(variables)


def test_a_refusal_has_the_words_of_the_template_and_its_line() -> None:
    with pytest.raises(TemplateError, match=r"refuses the messages, line 3: Only two turns!$"):
        render("\n{% if true %}\n{{ raise_exception('Only two turns!') }}\n{% endif %}")


@pytest.mark.parametrize(
    "source",
    ["{% for a in x %}" * 25 + "{% endfor %}" * 25, "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"],
    ids=["loops", "parentheses"],
)
def test_a_template_that_is_nested_too_deeply_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="cannot be compiled"):
        render(source, x=[])


def test_a_failure_has_its_kind_and_its_line() -> None:
    with pytest.raises(TemplateError, match=r"fails on these messages, line 2: UndefinedError: .*'x'"):
        render("\n{{ x.y }}")
    with pytest.raises(TemplateError, match=r"not valid Jinja, line 2: .*endfor"):
        render("{% for m in x %}\n{{ m }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '' | attr('__class__') }}",
        "{{ ''['__class__'].mro() }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ('%s' | format(messages)).__init__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ messages.sort() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ namespace.__init__ }}",
        "{{ dict.__call__.__globals__ }}",
        "{{ dict.mro() }}",
        "{{ self._TemplateReference__context }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ namespace({'_x': 1}) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{{ messages | tojson(indent=messages) }}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_an_attack_ends_in_a_template_error(source: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(TemplateError):
        render(source, messages=messages)
    assert messages == [{"role": "user", "content": "Hi"}]


def test_the_names_that_templates_rely_on_are_there() -> None:
    assert render("{{ dict(a=1, b=2).items() | list }}") == "[('a', 1), ('b', 2)]"
    assert render("{{ dict.fromkeys('ab', 0) }}") == "{'a': 0, 'b': 0}"
    assert (
        render("{% set ns = namespace({'a': 1}, self=2) %}{% set ns.b = 3 %}{{ ns.a }}{{ ns.self }}{{ ns.b }}") == "123"
    )
    assert render("{{ x | tojson }}", x={"b": "<é>", "a": 1}) == '{"b": "<é>", "a": 1}'
    assert render("{{ x | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}", x={"b": "é", "a": 1}) == (
        '{\n "a": 1,\n "b": "\\u00e9"\n}'
    )
    assert render("{{ strftime_now('%Y') }}", clock=lambda: datetime(1999, 1, 1)) == "1999"
    assert render("{{ strftime_now('%Y') }}").isdigit()
    assert render("{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}") == "1"


# --- templates without an end

MACRO = "{% macro m(n) %}{{ m(n - 1) if n }}{{ m(n - 1) if n }}{% endmacro %}{{ m(60) }}"
DOUBLED = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x | length }}"
ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    MACRO,
    "{{ lipsum(n=1000000) }}",
    "{{ 7**99999999 }}",
    "{{ (7**9999)**99999 }}",
    "{{ 'x' * 10**10 }}",
    "{{ [1] * 10**9 }}",
    "{{ 'x'.ljust(10**9) }}{{ 'x'.zfill(10**9) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ 'x' | slice(10**9) | list }}",
    "{{ 'x' | batch(10**9, 'y') | list }}",
    "{{ 'a\\nb' | indent(10**9) }}",
    "{{ 1.5 | round(10**9, 'ceil') }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{% set a = 'x' * 99999 %}{{ a.replace('x', a) | length }}",
    "{% set a = 'x' * 99999 %}{{ a | replace('x', a) | length }}",
    "{% set a = 'x' * 99999 %}{{ ([a] * 9999) | join | length }}",
    "{% set a = 'x' * 99999 %}{{ a.join([a] * 9999) | length }}",
    DOUBLED.replace("STEP", "ns.x ~ ns.x"),
    DOUBLED.replace("STEP", "ns.x + ns.x"),
    DOUBLED.replace("STEP", "ns.x * 2"),
    DOUBLED.replace("STEP", "(ns.x, ns.x) | join"),
    "{% macro w(x) %}{{ x }}{{ x }}{% endmacro %}" + DOUBLED.replace("STEP", "w(ns.x)"),
]


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_without_an_end_is_an_error(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_limits_are_far_from_what_a_prompt_needs() -> None:
    source = "{% for a in m %}{% for b in m %}{{ b }}{% endfor %}{% endfor %}"
    assert len(render(source, m=["x"] * 500)) == 250_000
    assert render("{{ 'x' * 9 ~ 2**40 }}{{ 'a' | center(9) }}{{ '%5d' % 3 }}") == "xxxxxxxxx1099511627776    a        3"
    assert render("{{ ['a', 1] | join(', ') }}{{ '{:>4}'.format(x) }}", x=1700000000) == "a, 11700000000"
    assert (
        render("{% macro m(n) %}{{ n }}{% endmacro %}{{ m(x) }}{{ x | default(x) }}", x=10**12) == "1000000000000" * 2
    )
