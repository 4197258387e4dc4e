"""`embedllm run`: one reply."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedllm.cancel import Cancel
from embedllm.cli.image_option import image_option, image_parts, user_message
from embedllm.cli.options import Settings, note, reply_options
from embedllm.cli.reply_output import say_end, say_statistics, show, stopped_by_ctrl_c
from embedllm.cli.tool_turns import mcp_options, opened_tools
from embedllm.errors import TemplateError
from embedllm.generation.completion import Completion, collect
from embedllm.generation.options import PromptOptions
from embedllm.loading.gguf import is_gguf
from embedllm.model.model import Model
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Picked

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON, Message


@click.command(short_help="Generate one reply.")
@click.argument("words", metavar="[MODEL] [TEXT]", nargs=-1)
@click.option("--raw", is_flag=True, help="Complete TEXT without the chat template.")
@click.option("--logprobs", type=click.IntRange(min=0), metavar="N",
              help="Print each token's log probability and the top N, to stderr or in --json.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the complete reply as a JSON object on stdout.")
@image_option
@mcp_options
@reply_options
def run(
    words: tuple[str, ...],
    settings: Settings,
    *,
    raw: bool,
    logprobs: int | None,
    as_json: bool,
    images: tuple[Path, ...],
    mcp: Path | None,
    mcp_allow: tuple[str, ...],
) -> None:
    """Generate a reply to TEXT, by MODEL, as --model has it, or the demo.

    TEXT '-' reads stdin, as does no TEXT when stdin is not a terminal. Input that is piped in beside TEXT follows it
    after an empty line. A single argument is MODEL if it is a model's folder or file, else TEXT. A model without a chat
    template completes the text, as with --raw. Ctrl-C stops the reply; its text so far is kept.
    """
    if len(words) > 2 or (len(words) == 2 and not _may_be_model(words[0])):
        unknown = "" if _may_be_model(words[0]) else f" There is no model '{words[0]}'."
        raise click.UsageError(f"found {len(words)} texts, from '{words[0]}' on; put TEXT in quotes.{unknown}")
    model, text = words if len(words) == 2 else (None, words[0] if words else None)
    if model is None and text is not None and not settings.is_model_named and _is_model(text):
        model, text = text, None
    settings = settings.of_model(model)
    if raw and (settings.system is not None or settings.variables is not None or images):
        raise click.UsageError("--system, --var and --image need the chat template; they cannot be used with --raw.")
    if mcp is not None and (raw or as_json or logprobs is not None):
        raise click.UsageError("--mcp cannot be used with --raw, --json or --logprobs.")
    text = _read(text)
    parts = image_parts(images)
    with opened_tools(mcp, mcp_allow) as tools, settings.open_model() as llm:
        llm.package.check_generates()
        sampling = settings.merge_sampling(llm.sampling)
        as_text = raw or _lacks_template(llm, settings, has_images=bool(parts))
        if tools is not None:
            if as_text:
                raise TemplateError(f"'{llm.name}' has no chat template; --mcp needs one.")
            reply = tools.reply(llm, _messages(settings.system, text, parts), sampling, settings, settings.variables)
        else:
            prompt = text if as_text else _messages(settings.system, text, parts)
            reply = _reply(llm, prompt, settings, sampling, as_json=as_json, logprobs=logprobs or 0)
        if as_json:
            click.echo(json.dumps(reply_object(reply, llm), ensure_ascii=False, allow_nan=False))
        elif logprobs is not None:
            _say_logprobs(reply, llm)
        say_end(reply, llm.context, remedy="shorten the text, or export with a larger --context")
        if settings.stats:
            note(f"device: {llm.device.name} ({llm.device.backend})")
            say_statistics(reply.statistics)
    if reply.finish_reason == "cancelled":
        click.get_current_context().exit(128 + signal.SIGINT)


def _reply(
    llm: Model, prompt: str | list[Message], settings: Settings, sampling: Sampling, *, as_json: bool, logprobs: int
) -> Completion:
    cancel = Cancel()
    options: PromptOptions = {**settings.reply, "variables": settings.variables, "logprobs": logprobs}
    chunks = llm.stream(prompt, sampling, cancel=cancel, **options)
    with stopped_by_ctrl_c(cancel):
        if as_json:
            return collect(chunks)
        is_markdown = settings.is_markdown and not isinstance(prompt, str)
        return show(chunks, reasoning=settings.reasoning == "show", is_markdown=is_markdown)


def reply_object(reply: Completion, llm: Model) -> dict[str, object]:
    """A reply as --json gives it: natural logs, seconds, tokens per second."""
    rates = {name: getattr(reply.statistics, name) for name in ("prefill_tokens_s", "decode_tokens_s")}
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "tokens": list(reply.tokens),
        "finish_reason": reply.finish_reason,
        "stopped_by": reply.stopped_by,
        "model": llm.name,
        "device": llm.device.name,
        "statistics": {**asdict(reply.statistics), **rates},
        "logprobs": [
            {**_picked(chosen, llm), "top": [_picked(other, llm) for other in top]} for chosen, top in _steps(reply)
        ],
    }


def _picked(picked: Picked, llm: Model) -> dict[str, object]:
    logprob = picked.logprob if math.isfinite(picked.logprob) else None  # JSON has no infinity
    return {"token": picked.token, "text": _token_text(picked.token, llm), "logprob": logprob}


def _steps(reply: Completion) -> list[tuple[Picked, tuple[Picked, ...]]]:
    tops = reply.top_logprobs or ((),) * len(reply.tokens)
    chosen = (Picked(token, logprob) for token, logprob in zip(reply.tokens, reply.logprobs, strict=True))
    return list(zip(chosen, tops, strict=True))


def _token_text(token: int, llm: Model) -> str:
    return llm.tokenizer.decode([token], special=True)


def _say_logprobs(reply: Completion, llm: Model) -> None:
    for chosen, top in _steps(reply):
        others = "  ".join(f"{_token_text(other.token, llm)!r} {other.logprob:.3f}" for other in top)
        note(f"{chosen.logprob:9.3f}  {_token_text(chosen.token, llm)!r:<16}  {others}".rstrip())


def _may_be_model(word: str) -> bool:
    return _is_model(word) or "/" in word or Path(word).exists()


def _is_model(word: str) -> bool:
    """Whether it names a model, and could hardly be a text."""
    return word == "demo" or is_gguf(word) or Path(word).is_dir()


def _read(text: str | None) -> str:
    """TEXT, and what is piped in."""
    if text is None and sys.stdin.isatty():
        raise click.UsageError("give TEXT, pipe it in, or type it after '-' (Ctrl-D ends it).")
    if text is not None and text != "-":
        piped = _stdin() if _is_piped() else ""
        return f"{text}\n\n{piped}" if piped.strip() else text
    if not (piped_text := _stdin()).strip():
        raise click.UsageError("stdin has no text.")
    return piped_text


def _is_piped() -> bool:
    """Whether somebody wrote stdin for this program: a pipe or a file, not a terminal, a socket or nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # it is none of the system's
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"stdin is no UTF-8 text ({error.reason} at byte {error.start}).") from error


def _lacks_template(llm: Model, settings: Settings, *, has_images: bool) -> bool:
    if llm.can_chat:
        return False
    if settings.system is not None or settings.variables is not None or has_images:
        raise TemplateError(f"'{llm.name}' has no chat template; --system, --var and --image need one.")
    note(f"'{llm.name}' has no chat template; plain text completion.")
    return True


def _messages(system: str | None, text: str, images: Sequence[JSON]) -> list[Message]:
    message = user_message(text.rstrip("\r\n"), images)
    return [message] if system is None else [{"role": "system", "content": system}, message]
