"""aload(): JavaScript fetches, checks and opens the model; its small texts become a folder, and all a Model."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol, cast
from weakref import finalize

from embedllm.backends.base import Device
from embedllm.backends.browser.engine import WebEngine, device_of
from embedllm.backends.browser.javascript import (
    Abort,
    JsValue,
    abort_controller,
    call,
    callback,
    check_can_wait,
    end_of,
    js_list,
    options,
    settled,
    started,
    translating,
    wait,
)
from embedllm.errors import PackageError
from embedllm.files.progress import FileProgress as Progress
from embedllm.generation.defaults import read_defaults
from embedllm.loading.options import check_context
from embedllm.model.model import Model
from embedllm.package.package import read_package
from embedllm.text.chat_template import ChatTemplate
from embedllm.web.bridge import JsLoaded, bridge
from embedllm.web.codec import WebCodec

if TYPE_CHECKING:
    from embedllm.web.bridge import JsTexts

_log = logging.getLogger("embedllm")
_NOT_HERE = {"tokenizer.json"}  # large, and read in JavaScript


class _JsProgress(Protocol):
    file: str
    loaded: float
    total: float
    phase: str


async def aload(
    url: str,
    *,
    device: str | Sequence[str] | None = None,
    threads: int = 0,
    context: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    urls: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    parse_special: bool = False,
) -> Model:
    """Opens the package folder at an address, which may be relative to the page.

    device: a name from `adevices()`, "auto", or a list of names that are tried in order; None: the best one.
    threads: for the CPU; 0 takes what suits it, one where the page is not cross-origin isolated.
    context: most tokens of a prompt and its reply together; see embedllm.load().
    on_progress: told how downloads and what follows them go on; what it raises ends the loading.
    urls: where the page has what is loaded from elsewhere otherwise. "bridge": the address of worker/load_model.js, in
    place of what ships with this package; the others go to JavaScript (docs/web.md).
    chat_template: Jinja text, in place of the folder's own template or for a model without one.
    parse_special: special tokens' texts in messages are read as these tokens; see embedllm.load().
    Cancelling the task ends the downloads, which a later call resumes.
    Raises PackageError, DeviceUnavailable, and ValueError for a context that the package does not hold.
    """
    check_context(context)
    places = dict(urls or {})
    module = await bridge(places.pop("bridge", ""))
    abort = abort_controller()
    load_options: dict[str, JsValue] = {"signal": abort.signal, "threads": threads}
    if device is not None:
        load_options["device"] = device if isinstance(device, str) else js_list(device)
    if context is not None:
        load_options["context"] = context
    if places:
        load_options["urls"] = options(places)
    raised: list[Exception] = []
    with ExitStack() as stack:
        if on_progress is not None:
            load_options["onProgress"] = stack.enter_context(callback(_progress_callback(on_progress, abort, raised)))
        try:
            loaded = await _abortable(started(module.load(url, options(load_options))), abort)
        except Exception as error:
            if raised:
                raise raised[0] from error  # aborting was only how it ended
            raise
    try:
        return _model(url, loaded, chat_template, parse_special=parse_special)
    except BaseException:
        call(loaded.engine.close)
        raise


def load(
    url: str,
    *,
    device: str | Sequence[str] | None = None,
    threads: int = 0,
    context: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    urls: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    parse_special: bool = False,
) -> Model:
    """As aload(), where a synchronous call can wait; raises ValueError where it cannot."""
    check_can_wait("'llm = await embedllm.aload(url)'")
    return wait(
        aload(
            url,
            device=device,
            threads=threads,
            context=context,
            on_progress=on_progress,
            urls=urls,
            chat_template=chat_template,
            parse_special=parse_special,
        )
    )


async def adevices(*, urls: Mapping[str, str] | None = None) -> list[Device]:
    """What this browser offers, and why the rest is not available. urls: as in aload()."""
    places = dict(urls or {})
    module = await bridge(places.pop("bridge", ""))
    with translating():
        js_devices = await module.devices(options({"urls": options(places)} if places else {}))
    return [device_of(device) for device in js_devices]


def devices(*, urls: Mapping[str, str] | None = None) -> list[Device]:
    """As adevices(), where a synchronous call can wait; raises ValueError where it cannot."""
    check_can_wait("'await embedllm.adevices()'")
    return wait(adevices(urls=urls))


async def _abortable(loading: asyncio.Future[JsLoaded], abort: Abort) -> JsLoaded:
    """What was loaded; a task that is cancelled ends the loading, and frees what came nevertheless."""
    try:
        with translating():
            await settled(loading)
            return loading.result()
    except asyncio.CancelledError:
        abort.abort()
        late = await end_of(loading)
        if late is not None:
            call(late.engine.close)
        raise


def _progress_callback(
    on_progress: Callable[[Progress], None], abort: Abort, raised: list[Exception]
) -> Callable[[JsValue], None]:
    """What JavaScript calls. raised: gets the first error, which must not go through JavaScript."""

    def tell(progress: JsValue) -> None:
        if raised:
            return
        event = cast("_JsProgress", progress)
        try:
            on_progress(
                Progress(file=event.file, loaded=int(event.loaded), total=int(event.total or 0), phase=event.phase)
            )
        except Exception as error:  # noqa: BLE001  # raised again by aload()
            raised.append(error)
            abort.abort()

    return tell


def _model(url: str, loaded: JsLoaded, chat_template: str | None, *, parse_special: bool) -> Model:
    parent = Path(tempfile.mkdtemp(prefix="embedllm-"))
    try:
        folder = parent / (PurePosixPath(url.partition("?")[0].rstrip("/")).name or "model")  # named in errors
        _write_texts(loaded.texts, folder)
        package = read_package(folder)
        package.limit_context(loaded.engine.context)
        engine = WebEngine(package, loaded.engine)
        refused = [device_of(device) for device in loaded.refused]
        passed = "".join(f"; not {device.name}: {device.reason}" for device in refused)
        _log.info("running '%s' on %s (%s)%s", package.name, engine.device.name, engine.device.backend, passed)
        tokenizer = WebCodec(loaded.tokenizer)
        template = None if chat_template is None else ChatTemplate(chat_template, tokens=tokenizer.named)
        model = Model(package, engine, tokenizer=tokenizer, defaults=read_defaults(folder), template=template,
                      is_direct=True, parse_special=parse_special)  # fmt: skip
    except BaseException:
        shutil.rmtree(parent)
        raise
    finalize(model, shutil.rmtree, parent, ignore_errors=True)
    return model


def _write_texts(texts: JsTexts, folder: Path) -> None:
    """Raises PackageError for a name that leads out of the folder."""
    for name in texts.keys():  # noqa: SIM118  # a Map of JavaScript's
        if name in _NOT_HERE:
            continue
        path = folder / name
        if set(name.split("/")) & {"", ".", ".."}:
            raise PackageError(f"the model lists the file {name!r}; expected one inside its folder.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts.get(name), encoding="utf-8")
