"""OpenAI's dialect: chat completions, completions, embeddings and models."""

from __future__ import annotations

from embedllm.server.endpoint import Endpoint
from embedllm.server.openai_api.chat import CHAT
from embedllm.server.openai_api.completions import COMPLETIONS
from embedllm.server.openai_api.embeddings import EMBEDDINGS
from embedllm.server.openai_api.models import MODEL, MODELS


def endpoints() -> list[Endpoint]:
    """The rows of the route table."""
    return [CHAT, COMPLETIONS, EMBEDDINGS, MODELS, MODEL]
