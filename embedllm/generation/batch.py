"""A batch of requests, each in a thread; devices with continuous batching run their steps together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from embedllm.cancel import Cancel

if TYPE_CHECKING:
    from embedllm.generation.runner import Request

_Reply = TypeVar("_Reply")


def reject_first_only(requests: Sequence[Request]) -> list[Request]:
    """The requests of one call: a full queue may reject only the first, so that a started batch is not lost."""
    return [*requests[:1], *(replace(request, is_rejectable=False) for request in requests[1:])]


def run_batch(
    requests: Sequence[Request], run: Callable[[Request, Cancel], _Reply], cancel: Cancel, *, parallel: int
) -> list[_Reply]:
    """What `run` gives for each request, in their order; when one fails the others are cancelled, and it raises that.

    parallel: maximum number of concurrent requests; the others wait.
    """
    if parallel == 1 or len(requests) < 2:
        return [run(request, cancel) for request in requests]
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # not where there are no threads

    # a switch of their own: the caller's cannot be switched back
    with cancel.passed_on() as others, ThreadPoolExecutor(min(parallel, len(requests)), "embedllm-batch") as threads:
        replies = [threads.submit(run, request, others) for request in requests]
        try:
            wait(replies, return_when=FIRST_EXCEPTION)
            failed = [reply for reply in replies if reply.done() and reply.exception() is not None]
            return [reply.result() for reply in failed or replies]
        finally:  # after an error, or a KeyboardInterrupt in the wait, nothing goes on
            others.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
