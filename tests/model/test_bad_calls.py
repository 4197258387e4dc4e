"""Calls of which a part would be lost without a word, or whose error would not say which part is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embedllm import ContextFull, Sampling, load

ANY_ROLE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PARTS_OF_USERS = (  # as models that see have it: texts are lists of parts
    "{% for m in messages if m.role == 'user' %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("role", ["usr", "System", "bot"])
def test_a_role_that_the_template_leaves_out_is_refused(role: str) -> None:
    message = rf"messages\[0\]\['role'\] is '{role}', a role that the chat template leaves out"
    with load("demo") as llm:
        with pytest.raises(ValueError, match=message):
            llm.prompt([{"role": role, "content": "list files"}])
        assert "list files" in llm.prompt([{"role": "user", "content": "list files"}])
    with load("demo", chat_template=ANY_ROLE) as llm:
        assert llm.prompt([{"role": role, "content": "list files"}]) == f"<{role}>list files"


@pytest.mark.parametrize("content", ["list files", [{"type": "text", "text": " list files"}]])
def test_so_is_one_where_texts_are_lists_of_parts(content: Any) -> None:  # noqa: ANN401  # a text or parts
    with load("demo", chat_template=PARTS_OF_USERS) as llm:
        assert llm.prompt([{"role": "user", "content": content}]).strip() == "list files"
        with pytest.raises(ValueError, match=r"messages\[1\]\['role'\] is 'usr', a role that the chat template leaves"):
            llm.prompt([{"role": "user", "content": "first"}, {"role": "usr", "content": content}])


def test_the_path_of_a_template_is_no_template() -> None:
    with pytest.raises(ValueError, match=r"chat_template is 'my\.jinja', which has nothing of Jinja in it"):
        load("demo", chat_template="my.jinja")
    with pytest.raises(TypeError, match=r"chat_template is .*; expected the text of a Jinja template"):
        load("demo", chat_template=Path("my.jinja"))  # type: ignore[arg-type]  # wrong on purpose


def test_a_batch_says_which_prompt_is_wrong() -> None:
    with load("demo") as llm:
        with pytest.raises(ValueError, match=r"^prompts\[1\]: the prompt is empty; give at least one token\.$"):
            llm.generate_batch(["a", "", "b"], max_tokens=1)
        with pytest.raises(ContextFull, match=r"^prompts\[2\]: the prompt has ") as caught:
            llm.generate_batch(["a", "b", "word " * 5000], max_tokens=1)
        assert caught.value.limit == llm.context


def test_thousands_of_labels_are_choices() -> None:
    labels = [f"label {number}" for number in range(5000)]
    with load("demo") as llm:
        reply = llm.generate("Pick one.", Sampling(temperature=0), response_format=labels)
    assert (reply.text in labels, reply.finish_reason) == (True, "stop")
