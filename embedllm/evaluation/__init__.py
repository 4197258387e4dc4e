"""How good a model still is: perplexity, distance from its 16-bit original, replies that can be checked.

from embedllm.evaluation import evaluate

found = evaluate(["my-int4"], "held-out.jsonl", against="my-16bit")
print(found.models[0].text)
"""

from __future__ import annotations

from embedllm.evaluation.results import Divergence, Evaluation, ModelScore, TaskScore, TextRead, TextScore, WrongReply
from embedllm.evaluation.run import evaluate

__all__ = ["Divergence", "Evaluation", "ModelScore", "TaskScore", "TextRead", "TextScore", "WrongReply", "evaluate"]
