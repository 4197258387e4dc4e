"""Translates errors of huggingface_hub to HubError with a remedy; tokens are redacted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedllm.errors import HubError

_SHOWN = 5  # names of a folder


@contextmanager
def refusing(name: str, revision: str | None, token: str | bool | None) -> Iterator[None]:
    """Raises HubError for what a call of the client raises: its own errors, ValueError, those of its HTTP package."""
    try:
        yield
    except Exception as error:
        raise HubError(_message(error, name, revision, token)) from error


def _message(error: Exception, name: str, revision: str | None, token: str | bool | None) -> str:
    from huggingface_hub import constants, errors

    site = constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        return f"'{name}' is gated: accept its conditions on {site}/{name}, then log in (hf auth login) or pass token=."
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"there is neither a folder '{name}' here{_near(name)} nor a repository of that name on {site}, or it is "
            "private: then log in (hf auth login) or pass token=."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        at = revision or "main"
        return f"'{name}' has no revision '{at}'; expected a branch, a tag or a commit."
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(token, str) and token:
        reason = reason.replace(token, "***")
    return (
        f"there is no folder '{name}' here, and the repository cannot be downloaded from {site}, nor is all of it in "
        f"the cache: {reason}"
    )


def _near(name: str) -> str:
    """What a folder has that the name could be meant to lie in."""
    folder = Path(name).parent
    if not folder.is_dir():
        return ""
    names = sorted(path.name for path in folder.iterdir())[:_SHOWN]
    return f" ('{folder}' has: {', '.join(names) or 'nothing'})"
