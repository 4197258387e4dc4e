"""The stages of Ray Data, called as Ray Data calls them: with a column an array."""

from __future__ import annotations

import numpy as np
import pytest

import embedllm
from embedllm.integrations.ray.batch_inference import BatchGenerator


@pytest.fixture(scope="module")
def generator() -> BatchGenerator:
    return BatchGenerator("demo", column="question", max_tokens=8, temperature=0.0)


def test_replies_are_those_of_the_library(generator: BatchGenerator) -> None:
    questions = ["list files by size", "show the free disk space", "count the lines of a.txt"]
    found = generator({"question": np.array(questions, object), "id": np.array([1, 2, 3])})
    with embedllm.load("demo") as llm:
        prompts = [[{"role": "user", "content": question}] for question in questions]
        expected = llm.generate_batch(prompts, max_tokens=8, temperature=0.0)
    assert found["reply"].tolist() == [reply.text for reply in expected]
    assert found["completion_tokens"].tolist() == [len(reply.tokens) for reply in expected]
    assert found["prompt_tokens"].tolist() == [reply.statistics.prompt_tokens for reply in expected]
    assert found["id"].tolist() == [1, 2, 3]
    assert found["error"].tolist() == [None] * 3


def test_conversations_are_replied_to_as_well(generator: BatchGenerator) -> None:
    column = np.empty(1, object)
    column[0] = np.array([{"role": "user", "content": "list files by size"}], object)  # as Arrow gives lists
    texts = generator({"question": np.array(["list files by size"], object)})
    assert generator({"question": column})["reply"].tolist() == texts["reply"].tolist()


def test_a_row_that_fails_says_why_and_the_others_are_done(generator: BatchGenerator) -> None:
    found = generator({"question": np.array(["list files", "x " * 5000, "list files"], object)})
    assert found["finish_reason"].tolist()[1] == "error"
    assert "tokens" in found["error"][1]
    assert found["reply"][0] == found["reply"][2] != ""
    assert found["error"].tolist()[::2] == [None, None]


def test_a_column_that_is_missing_is_said(generator: BatchGenerator) -> None:
    with pytest.raises(ValueError, match="no column 'question'; expected one of text"):
        generator({"text": np.array(["a"], object)})


def test_a_system_message_goes_with_chats_only() -> None:
    with pytest.raises(ValueError, match="is_chat=True"):
        BatchGenerator("demo", is_chat=False, system="be brief")
