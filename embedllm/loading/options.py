"""The options of load() as one value: for aload(), the worker, the command line and the browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from embedllm.backends.options import OpenVINOOptions, RuntimeOptions
from embedllm.kv_cache.prefix_cache import CACHE_DIR_BYTES

if TYPE_CHECKING:
    from embedllm.files.progress import FileProgress, Progress
    from embedllm.model.model import Model

    OnProgress: TypeAlias = Callable[[Progress], None] | Callable[[FileProgress], None]  # on the desktop; in a browser

P = ParamSpec("P")
R = TypeVar("R")
_KV_TYPES = ("int8", "int4")
_NOT_IN_A_BROWSER = ("check", "exact", "kv", "openvino", "draft", "adapters", "cache_dir", "max_sequences",
                     "max_waiting", "revision", "token", "local_files_only")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of load(), which documents them; the defaults are its own.

    Raises ValueError for values out of range and for options that contradict each other.
    """

    device: str | Sequence[str] | None = None
    threads: int = 0
    exact: bool = False
    kv: str | None = None
    context: int | None = None
    chat_template: str | None = None
    parse_special: bool = False
    openvino: OpenVINOOptions | None = None
    draft: str | os.PathLike[str] | Model | None = None
    adapters: Mapping[str, str | os.PathLike[str]] | None = None
    prefix_cache: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_dir_bytes: int = CACHE_DIR_BYTES
    max_sequences: int | None = None
    max_waiting: int | None = None
    threaded: bool = True
    tuned: bool = True
    check: bool = False
    revision: str | None = None
    token: str | bool | None = None
    local_files_only: bool = False
    on_progress: OnProgress | None = None
    urls: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        RuntimeOptions(threads=self.threads)
        check_concurrency(self.max_sequences, self.max_waiting)
        check_context(self.context)
        check_template(self.chat_template)
        if not self.threaded and (self.max_sequences is not None or self.max_waiting is not None):
            raise ValueError("threaded=False computes one call at a time; leave out max_sequences and max_waiting.")
        if self.openvino is not None and not isinstance(self.openvino, OpenVINOOptions):
            raise ValueError(f"openvino is {self.openvino!r}; expected an OpenVINOOptions.")
        check_kv(self.kv, exact=self.exact, openvino=self.openvino)

    @property
    def runtime(self) -> RuntimeOptions:
        """How a device computes where nothing was measured."""
        return RuntimeOptions(threads=self.threads)

    @property
    def has_tuning(self) -> bool:
        """Whether tune() measures such loads."""
        return self.adapters is None and self.openvino is None

    def of_draft(self, device: str | Sequence[str] | None) -> LoadOptions:
        """Of the load of a draft model."""
        return LoadOptions(device=device, threads=self.threads, exact=self.exact, openvino=self.openvino,
                           prefix_cache=0, threaded=self.threaded, tuned=False, token=self.token,
                           local_files_only=self.local_files_only, on_progress=self.on_progress)  # fmt: skip

    def kv_key(self, runtime: RuntimeOptions) -> str:
        """What the values of the KV depend on beside the model and the device; part of the key of a saved KV.

        runtime: of the device that the model runs on.
        """
        adapters = " adapters" if self.adapters is not None else ""
        floats = " floats" if runtime.floats else ""
        return f"exact={self.exact} kv={self.kv} openvino={self.openvino}{adapters}{floats}"

    def check_for_browser(self) -> None:
        """Raises ValueError for an option that a browser does not have."""
        if odd := [name for name in _NOT_IN_A_BROWSER if getattr(self, name) not in (None, False)]:
            raise ValueError(f"{' and '.join(odd)} cannot be chosen in a browser; leave out what does not run there.")


def check_concurrency(max_sequences: int | None, max_waiting: int | None) -> None:
    """Raises ValueError for values out of range and for what is no whole number."""
    for name, value, least in (("max_sequences", max_sequences, 1), ("max_waiting", max_waiting, 0)):
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"{name} is {value!r}; expected a whole number from {least} on, or None.")


def check_template(template: object) -> None:
    """Raises TypeError for what is no text, ValueError for one without Jinja, such as the path of a template."""
    if template is not None and not isinstance(template, str):
        raise TypeError(f"chat_template is {template!r}; expected the text of a Jinja template.")
    if template and "{" not in template:
        raise ValueError(
            f"chat_template is {template!r:.80}, which has nothing of Jinja in it; expected the text of a template, as "
            "Path(...).read_text() gives it."
        )


def check_context(context: int | None) -> None:
    """Raises ValueError for what is no whole number, or too few for a prompt and its reply."""
    if context is not None and (type(context) is not int or context < 2):
        raise ValueError(f"context is {context!r}; expected a whole number of tokens from 2 on, or None.")


def check_kv(kv: str | None, *, exact: bool, openvino: OpenVINOOptions | None) -> None:
    """Raises ValueError for a type that there is none of, or one that contradicts the other choices."""
    if kv not in (None, *_KV_TYPES):
        raise ValueError(f"kv is {kv!r}; expected None or one of {', '.join(_KV_TYPES)}.")
    if kv is not None and exact:
        raise ValueError(f"kv='{kv}' rounds what was read, and exact=True asks for no rounding; leave out one of them.")
    if kv is not None and openvino is not None and openvino.kv is not None:
        raise ValueError(f"kv='{kv}' and OpenVINOOptions(kv='{openvino.kv}') are both given; leave out one of them.")


def same_parameters(function: Callable[P, object]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Declares that a function takes what another one takes, for type checkers, help() and inspect.signature()."""

    def declare(own: Callable[..., R]) -> Callable[P, R]:
        own.__wrapped__ = function  # type: ignore[attr-defined]  # what inspect follows
        return own

    return declare
