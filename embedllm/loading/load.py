"""load() and aload(): find the folder, choose the device, open both and make a Model of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from embedllm.adapters.adapter import Adapters
from embedllm.backends.base import Device
from embedllm.backends.options import OpenVINOOptions, RuntimeOptions
from embedllm.generation.admission import check_concurrency, make_slots
from embedllm.generation.defaults import read_defaults
from embedllm.kv_cache.fingerprint import model_fingerprint
from embedllm.kv_cache.prefix_cache import CACHE_DIR_BYTES, PREFIX_CACHE_BYTES, PrefixCache, open_disk_store
from embedllm.loading.device_search import open_first
from embedllm.loading.draft import check_draft
from embedllm.loading.resolve import find_package
from embedllm.model import Model
from embedllm.package.package import open_package
from embedllm.text.chat_template import ChatTemplate
from embedllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from asyncio import Future

    from embedllm.files.progress import Progress
    from embedllm.web import Progress as WebProgress

    _InBrowser = Callable[[WebProgress], None] | None
    OnProgress = Callable[[Progress], None] | Callable[[WebProgress], None]

_KV_TYPES = ("int8", "int4")


def load(
    path: str | os.PathLike[str] = "demo",
    *,
    device: str | Sequence[str] | None = None,
    threads: int = 0,
    exact: bool = False,
    kv: str | None = None,
    chat_template: str | None = None,
    openvino: OpenVINOOptions | None = None,
    draft: str | os.PathLike[str] | Model | None = None,
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    prefix_cache: int = PREFIX_CACHE_BYTES,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_dir_bytes: int = CACHE_DIR_BYTES,
    max_sequences: int | None = None,
    max_waiting: int | None = None,
    tuned: bool = True,
    revision: str | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    on_progress: OnProgress | None = None,
    urls: Mapping[str, str] | None = None,
) -> Model:
    """Opens a package folder on a device.

    path: a folder written by `embedllm export`, or by another exporter, or a graph in one
    (docs/guide-external-folders.md); "demo", the model that ships with this library; a GGUF file, which is exported into
    the user's cache the first time (docs/guide-gguf.md); or a model of the Hugging Face hub, as text: "org/name", or
    "org/name:int4" for one of several there (docs/guide-hub.md).
    device: a name from `devices()`, "auto", or a list of names that are tried in order; None takes the environment
    variable EMBEDLLM_DEVICE (names with commas between them), or else "auto", the best one. A device that was asked for
    alone never falls back to another; of "auto" and of a list the first that is there, suits the package, computes
    rightly (docs/devices.md#probes), has the memory and opens is taken.
    threads: for the CPU; 0 takes one a physical core.
    exact: float activations in every product; slower to decode (docs/numerics.md). The reference has no others.
    kv: "int8" keeps what was read in a quarter of the memory, "int4" in an eighth, and approximately; None as floats.
    The CPU's take a graph that an export does not have: embedllm graph FOLDER --variant int8-kv (docs/numerics.md).
    adapters: LoRA adapters as PEFT saves them, folders or safetensors files by the names that calls choose them by
    (docs/guide-python.md#adapters); {} for a model that is given some later. On `cpu`, `openvino` and `reference`.
    openvino: choices for OpenVINO's devices, the NPU among them.
    draft: a much smaller model with the same vocabulary, which guesses for this one (speculate= of Model.generate()): a
    folder, opened on the same device, or a Model, which stays yours to close.
    chat_template: Jinja text, in place of the folder's own template or for a model without one.
    prefix_cache: bytes of memory at most for KV that calls have in common (docs/guide-python.md#prefix-cache); it is
    taken only for what a call before has computed and would lose. 0: a call has nothing but of the one before it.
    cache_dir: a folder where the KV of prompts is kept for later processes, cache_dir_bytes of it at most; None writes
    nothing. What users said can be read from it.
    max_sequences: replies that are made at once; further calls wait for one to end, by `priority`, then in their order.
    None: as many as have room for a whole context each in the memory that is free, at least 16.
    max_waiting: calls that wait at most, a further one raises Busy; None: 1,024 (docs/guide-python.md#many-at-once).
    tuned: use what tune() has measured here for such loads: "auto" takes the device that was fastest, and a device runs
    as it was fastest unless `threads` is given. Not for loads with `adapters` or `openvino`. Model.tuned says what was
    used, or why nothing. EMBEDLLM_TUNED=off in the environment has the same effect as False.
    revision: of a model of the hub: branch, tag or commit. token: for private and gated ones; None: as the hub's client
    finds it (`hf auth login`, HF_TOKEN). local_files_only: from the caches, without asking the hub.
    on_progress: called while a model is downloaded or exported, with embedllm.export.Progress, from any
    thread; in a browser with embedllm.web.Progress. urls: for a browser: see embedllm.web.aload().
    In a browser: path is an address, exact, kv, openvino, draft, adapters, cache_dir, max_sequences, max_waiting,
    revision, token and local_files_only are refused, nothing is tuned, and the call needs JSPI, which aload() does not
    (docs/web.md).
    Raises PackageError, DeviceUnavailable, for a GGUF file ExportError, and for a model of the hub HubError, too.
    """
    if in_browser():
        _check_for_browser(exact=exact, kv=kv, openvino=openvino, draft=draft, adapters=adapters, cache_dir=cache_dir,
                           max_sequences=max_sequences, max_waiting=max_waiting, revision=revision, token=token,
                           local_files_only=local_files_only)  # fmt: skip
        from embedllm import web

        return web.load(
            os.fspath(path),
            device=device,
            threads=threads,
            chat_template=chat_template,
            on_progress=cast("_InBrowser", on_progress),  # which of the two it is the caller knows
            urls=urls,
        )
    from embedllm.adapters.peft import check_adaptable, read_adapters
    from embedllm.backends.devices import registry
    from embedllm.backends.devices import selection as select
    from embedllm.loading.tuning_record import recall, unused
    from embedllm.structured.llguidance import TokenGrammars  # not in a browser, which has JavaScript's

    given = RuntimeOptions(threads=threads)
    check_concurrency(max_sequences, max_waiting)
    found_at = find_package(path, revision=revision, token=token, local_files_only=local_files_only,
                            on_progress=on_progress)  # fmt: skip
    package = open_package(found_at, whole=False)
    wish = device if device is not None else select.names_in(os.environ.get("EMBEDLLM_DEVICE", "")) or select.AUTO
    if wish == select.AUTO and package.external is not None:
        wish = package.external.devices
    if openvino is not None and not isinstance(openvino, OpenVINOOptions):
        raise ValueError(f"openvino is {openvino!r}; expected an OpenVINOOptions.")
    check_kv(kv, exact=exact, openvino=openvino)
    if package.encoder is not None:
        from embedllm.loading.load_encoder import open_encoder

        others = {"kv": kv, "adapters": adapters, "draft": draft, "chat_template": chat_template}
        return open_encoder(package, wish, runtime=given, exact=exact, openvino=openvino, only_for_text=others)
    adapts = adapters is not None
    if adapts:
        check_adaptable(package)
    is_usual = adapters is None and openvino is None
    measured = recall(package, exact=exact, kv=kv) if tuned and is_usual else unused(is_wanted=tuned)
    found_here = registry.DeviceCatalog(package, exact=exact, kv=kv, adapts=adapts)
    first = measured.fastest or (package.external.prefers if package.external is not None else "")
    search = select.DeviceSearch(found_here.lookup, wish, fastest=first)
    folder = open_disk_store(cache_dir, prefix_cache=prefix_cache, budget_bytes=cache_dir_bytes)
    defaults, tokenizer = read_defaults(package.folder), Tokenizer.open(package.folder)  # before the weights
    template = None if chat_template is None else ChatTemplate(chat_template, tokens=tokenizer.named)
    turns = package.is_rotated
    found = None if adapters is None else read_adapters(adapters, package.decoder, is_rotated=turns)
    drafter = draft
    if drafter is not None and not isinstance(drafter, Model):
        drafter = load(drafter, device=search.wish if first else device, threads=threads, exact=exact,
                       openvino=openvino, prefix_cache=0, tuned=False, token=token, local_files_only=local_files_only,
                       on_progress=on_progress)  # fmt: skip

    def runtime(device: Device) -> RuntimeOptions:
        return given if threads else measured.runtime(device.name)

    try:
        if drafter is not None:
            check_draft(package, tokenizer, drafter)
        engine, memory, package = open_first(
            package, search, runtime=runtime, exact=exact, kv=kv, openvino=openvino, adapters=found
        )
    except BaseException:
        if drafter is not None and drafter is not draft:
            drafter.close()
        raise
    floats = " floats" if runtime(engine.device).floats else ""
    settings = f"exact={exact} kv={kv} openvino={openvino}{' adapters' if adapts else ''}{floats}"
    shared_kv = None
    if prefix_cache or folder is not None:
        shared_kv = PrefixCache(prefix_cache, model=model_fingerprint(package, engine.device, settings), folder=folder)
    return Model(package, engine, tokenizer=tokenizer, defaults=defaults, template=template, draft=drafter,
                 owns_draft=drafter is not draft, grammars=TokenGrammars(tokenizer), memory=memory,
                 prefix_cache=shared_kv, settings=settings,
                 slots=make_slots(memory, engine, max_sequences, max_waiting),
                 adapters=None if found is None else Adapters(found),
                 tuned=measured.told(engine.device.name, is_overruled=threads != 0))  # fmt: skip


async def aload(
    path: str | os.PathLike[str] = "demo",
    *,
    device: str | Sequence[str] | None = None,
    threads: int = 0,
    exact: bool = False,
    kv: str | None = None,
    chat_template: str | None = None,
    openvino: OpenVINOOptions | None = None,
    draft: str | os.PathLike[str] | Model | None = None,
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    prefix_cache: int = PREFIX_CACHE_BYTES,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_dir_bytes: int = CACHE_DIR_BYTES,
    max_sequences: int | None = None,
    max_waiting: int | None = None,
    tuned: bool = True,
    revision: str | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    on_progress: OnProgress | None = None,
    urls: Mapping[str, str] | None = None,
) -> Model:
    """As load(), without blocking the event loop."""
    if in_browser():
        _check_for_browser(exact=exact, kv=kv, openvino=openvino, draft=draft, adapters=adapters, cache_dir=cache_dir,
                           max_sequences=max_sequences, max_waiting=max_waiting, revision=revision, token=token,
                           local_files_only=local_files_only)  # fmt: skip
        from embedllm import web

        return await web.aload(
            os.fspath(path),
            device=device,
            threads=threads,
            on_progress=cast("_InBrowser", on_progress),  # which of the two it is the caller knows
            urls=urls,
            chat_template=chat_template,
        )
    import asyncio  # a third of the import time of the whole package

    def loaded() -> Model:
        return load(path, device=device, threads=threads, exact=exact, kv=kv, chat_template=chat_template,
                    openvino=openvino, draft=draft, adapters=adapters, prefix_cache=prefix_cache, cache_dir=cache_dir,
                    cache_dir_bytes=cache_dir_bytes, max_sequences=max_sequences, max_waiting=max_waiting,
                    tuned=tuned, revision=revision, token=token, local_files_only=local_files_only,
                    on_progress=on_progress)  # fmt: skip

    loading = asyncio.get_running_loop().run_in_executor(None, loaded)
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(_close_late)  # a load cannot be stopped
        raise


def _close_late(loading: Future[Model]) -> None:
    """Frees a model that nobody waits for any more."""
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()


def in_browser() -> bool:
    """Whether this is Pyodide."""
    return sys.platform == "emscripten"


def _check_for_browser(**given: object) -> None:
    """Raises ValueError for an option that a browser does not have."""
    if odd := [name for name, value in given.items() if value not in (None, False)]:
        raise ValueError(f"{' and '.join(odd)} cannot be chosen in a browser; leave out what does not run there.")


def check_kv(kv: str | None, *, exact: bool, openvino: OpenVINOOptions | None) -> None:
    """Raises ValueError for a type that there is none of, or one that contradicts the other choices."""
    if kv not in (None, *_KV_TYPES):
        raise ValueError(f"kv is {kv!r}; expected None or one of {', '.join(_KV_TYPES)}.")
    if kv is not None and exact:
        raise ValueError(f"kv='{kv}' rounds what was read, and exact=True asks for no rounding; leave out one of them.")
    if kv is not None and openvino is not None and openvino.kv is not None:
        raise ValueError(f"kv='{kv}' and OpenVINOOptions(kv='{openvino.kv}') are both given; leave out one of them.")


def devices() -> list[Device]:
    """What this machine offers, and why the rest is not available.

    A GPU or plug-in whose probe gave wrong numbers is not; one that was never probed is, until load() finds otherwise.
    In a browser the call needs JSPI, which adevices() does not.
    """
    if in_browser():
        from embedllm import web

        return web.devices()
    from embedllm.loading.device_list import listing

    return [listed.probed_device for listed in listing()]


async def adevices(*, urls: Mapping[str, str] | None = None) -> list[Device]:
    """As devices(), without blocking the event loop. urls: for a browser; see embedllm.web.aload()."""
    if in_browser():
        from embedllm import web

        return await web.adevices(urls=urls)
    import asyncio

    return await asyncio.to_thread(devices)
