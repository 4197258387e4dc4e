"""What went wrong -> a status, and the body that each dialect has for it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from embedllm.errors import Busy, ContextFull, EmbedError, TemplateError
from embedllm.openai.schema import InvalidRequest
from embedllm.server.lease import PoolBusy
from embedllm.server.model_pool import UnknownModel

if TYPE_CHECKING:
    from embedllm.types import JSON

Dialect: TypeAlias = Literal["openai", "anthropic"]
_log = logging.getLogger("embedllm.server")

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error",
                 500: "server_error", 503: "server_error"}  # fmt: skip
_ANTHROPIC_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error",
                    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error"
                    }  # fmt: skip
# the providers' own words: by them LiteLLM, LangChain and agents know, beside or instead of the code, that the
# conversation has to be shortened
_CONTEXT_FULL: dict[Dialect, str] = {
    "openai": "This model's maximum context length is {limit} tokens: ",
    "anthropic": "prompt is too long: {tokens} tokens > {limit} maximum: ",
}


class ApiError(Exception):
    """A request that is not answered, and why."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        is_repeatable: bool = True,
        context_full: ContextFull | None = None,
    ) -> None:
        """code, param: OpenAI's. retry_after_s: when it may go well. is_repeatable: whether clients may try again.

        context_full: the prompt has too many tokens, which each dialect has words for.
        """
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after_s, self.is_repeatable = retry_after_s, is_repeatable
        self.context_full = context_full

    @property
    def headers(self) -> dict[str, str]:
        """Of the response."""
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after_s)))
        if not self.is_repeatable:
            headers["x-should-retry"] = "false"  # read by the clients of OpenAI and Anthropic, which else try again
        return headers

    def body(self, dialect: Dialect, request_id: str) -> dict[str, JSON]:
        """In the form of a dialect."""
        message = self.message
        if (full := self.context_full) is not None:
            message = _CONTEXT_FULL[dialect].format(tokens=full.tokens, limit=full.limit) + message
        if dialect == "anthropic":
            kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
        kind = _OPENAI_TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def refusal(error: Exception) -> ApiError:
    """What a client is told of an error. What is no client's fault is logged, and told without its details."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return ApiError(400, str(error), code=error.code, param=error.param)
        case UnknownModel():
            return ApiError(404, str(error), code="model_not_found", param="model")
        case PoolBusy():
            return ApiError(429, str(error), code="model_busy", retry_after_s=error.retry_after)
        case Busy():
            return ApiError(429, str(error), code="rate_limit_exceeded", retry_after_s=1)
        case ContextFull():
            return ApiError(400, str(error), code="context_length_exceeded", param="messages", context_full=error)
        case TimeoutError():
            return ApiError(408, str(error) or "the time limit of a request was reached.", code="timeout",
                            is_repeatable=False)  # fmt: skip
        case RecursionError():
            return ApiError(400, "the request is nested too deeply.")
        case TemplateError():
            return ApiError(400, str(error))
        case EmbedError():
            _log.error("%s: %s", type(error).__name__, error)
            return ApiError(500, "the model could not be used; the server's log says why.", code="model_failed")
        case ValueError() | OverflowError():
            return ApiError(400, str(error))
        case _:
            _log.error("a request failed", exc_info=error)
            return ApiError(500, "an internal error; the server's log says more.", code="internal_error")


def encode(body: Mapping[str, JSON]) -> bytes:
    """JSON in ASCII: halves of surrogate pairs, which a request may have sent, are no UTF-8."""
    return json.dumps(body, separators=(",", ":")).encode()
