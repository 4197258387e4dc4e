"""load() and aload(): find the folder, choose the device, open both and make a Model of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from embedllm.backends.base import Device, KeepsPrefixes, WarmsUp, max_batch
from embedllm.backends.options import OpenVINOOptions, RuntimeOptions
from embedllm.errors import DeviceError, ran_out
from embedllm.files.native_calls import native_call
from embedllm.generation.defaults import read_defaults
from embedllm.generation.scheduler import MAX_RUNNING, MAX_WAITING
from embedllm.kv_cache.fingerprint import model_fingerprint
from embedllm.kv_cache.prefix_cache import CACHE_DIR_BYTES, PREFIX_CACHE_BYTES, PrefixCache, open_disk_store
from embedllm.loading.draft import check_draft, check_is_no_head, head_of, hidden_graph_of
from embedllm.loading.load_request import open_requested_package, preferred_device, search_devices, tuning_of
from embedllm.loading.options import LoadOptions, same_parameters
from embedllm.model.model import Model
from embedllm.package.file_state import LoadedFiles
from embedllm.package.lora.adapter import Adapters
from embedllm.package.package import Package
from embedllm.text.chat_template import ChatTemplate
from embedllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from asyncio import Future

    from embedllm.backends.base import Engine
    from embedllm.backends.needed_memory import MemoryEstimate
    from embedllm.generation.speculation.draft_head import HeadDrafter, HeadEngine
    from embedllm.kv_cache.prefix_cache import BlockStore
    from embedllm.loading.options import OnProgress
    from embedllm.package.lora.adapter import Adapter
    from embedllm.text.protocols import ModelCodec


def load(
    path: str | os.PathLike[str] = "demo",
    *,
    device: str | Sequence[str] | None = None,
    threads: int = 0,
    exact: bool = False,
    kv: str | None = None,
    context: int | None = None,
    chat_template: str | None = None,
    parse_special: bool = False,
    openvino: OpenVINOOptions | None = None,
    draft: str | os.PathLike[str] | Model | None = None,
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    prefix_cache: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_dir_bytes: int = CACHE_DIR_BYTES,
    max_sequences: int | None = None,
    max_waiting: int | None = None,
    threaded: bool = True,
    tuned: bool = True,
    check: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    on_progress: OnProgress | None = None,
    urls: Mapping[str, str] | None = None,
) -> Model:
    """Opens a package folder on a device.

    path: a folder written by `embedllm export`, or by another exporter, or a graph in one
    (docs/guide-external-folders.md); "demo", the model that ships with embedllm; a GGUF file or a Hugging Face
    checkpoint, a folder with config.json and safetensors, which are exported into the user's cache the first time
    (docs/guide-gguf.md, docs/guide-export.md#without-a-command); or a model of the Hugging Face hub, as text:
    "org/name", or "org/name:int4" for one of several there (docs/guide-hub.md).
    device: a name from `devices()`, "auto", or a list of names that are tried in order, also as one text with commas
    between them; None takes the environment variable EMBEDLLM_DEVICE, or else "auto", the best one. A device that was
    asked for alone never falls back to another; of "auto" and of a list the first that is there, suits the package,
    computes rightly (docs/devices.md#probes), has the memory and opens is taken.
    threads: for the CPU; 0: number of physical cores.
    exact: float activations in every product; slower to decode (docs/numerics.md). The reference has no others.
    kv: "int8" or "int4" quantizes the KV cache to 1/4 or 1/8 of float32; None keeps floats.
    The CPU's take a graph that an export does not have: embedllm graph FOLDER --variant int8-kv (docs/numerics.md).
    context: most tokens of a prompt and its reply together, which bounds the memory of the KV cache; None: all that the
    package holds. Longer prompts raise ContextFull. KV takes memory as it is used, up to this length.
    adapters: LoRA adapters as PEFT saves them, folders or safetensors files by the names that calls choose them by
    (docs/guide-python.md#adapters); {} for a model that is given some later. On `cpu`, `openvino` and `reference`.
    openvino: choices for OpenVINO's devices, the NPU among them.
    draft: a draft model for speculative decoding (speculate= of Model.generate()), much smaller and with the same
    vocabulary: a folder, opened on the same device, or a Model, which stays yours to close. Or a head of the
    model itself, FOLDER/mtp or FOLDER/eagle, on `cpu`, `openvino` and `cuda`
    (docs/guide-python.md#multi-token-prediction-heads).
    chat_template: Jinja text, in place of the folder's own template or for a model without one.
    parse_special: special tokens' texts in messages, tool results, tools and documents are read as these tokens. By
    default they are plain text, and only the chat template writes special tokens
    (docs/guide-python.md#special-tokens-in-messages).
    prefix_cache: bytes of memory at most for KV that calls have in common (docs/guide-python.md#prefix-cache); it is
    taken only for what a call before has computed and would lose. None: 256 MiB, and on CUDA a sixteenth of the GPU's
    free memory where that is more. 0: off; without `cache_dir` only the previous call's own KV is reused.
    cache_dir: a folder where the KV of prompts is kept for later processes, cache_dir_bytes of it at most; None writes
    nothing. Cached prompts are stored unencrypted.
    max_sequences: maximum concurrent requests; further calls wait for one to end, by `priority`, then in their order.
    None: as many as the device feeds in one run, at least 16. Fewer run while their KV needs more memory than is free.
    max_waiting: calls that wait at most, a further one raises Busy; None: 1,024 (docs/guide-python.md#many-at-once).
    threaded: False computes in the calling thread, one call at a time, and starts no thread; only the thread that has
    loaded the model may call it (docs/guide-python.md#without-a-thread).
    tuned: use what tune() has measured here for such loads: "auto" takes the device that was fastest, and a device runs
    as it was fastest unless `threads` is given. Not for loads with `adapters` or `openvino`. Model.tuned says what was
    used, or why nothing. EMBEDLLM_TUNED=off in the environment has the same effect as False.
    check: compare every file with the hash that the export noted, which reads all of them once. Sizes and some parts of
    the weights are compared always (docs/security.md#damaged-files).
    revision: of a model of the hub: branch, tag or commit. token: for private and gated ones; None: as the hub's client
    finds it (`hf auth login`, HF_TOKEN). local_files_only: from the caches, without asking the hub.
    on_progress: called while a model is downloaded or exported, with embedllm.export.Progress, from any
    thread; in a browser with embedllm.web.Progress. urls: for a browser: see embedllm.web.aload().
    In a browser: path is an address, check, exact, kv, openvino, draft, adapters, cache_dir, max_sequences,
    max_waiting, revision, token and local_files_only are refused, nothing is tuned, and the call needs JSPI, which
    aload() does not (docs/web.md).
    Raises PackageError, DeviceUnavailable, for a GGUF file or a checkpoint ExportError, and for a model of the hub
    HubError, too. ValueError for options that are out of range or contradict each other, TypeError for a path that is
    neither text nor a Path.
    """
    return open_model(
        path,
        LoadOptions(
            device=device,
            threads=threads,
            exact=exact,
            kv=kv,
            context=context,
            chat_template=chat_template,
            parse_special=parse_special,
            openvino=openvino,
            draft=draft,
            adapters=adapters,
            prefix_cache=prefix_cache,
            cache_dir=cache_dir,
            cache_dir_bytes=cache_dir_bytes,
            max_sequences=max_sequences,
            max_waiting=max_waiting,
            threaded=threaded,
            tuned=tuned,
            check=check,
            revision=revision,
            token=token,
            local_files_only=local_files_only,
            on_progress=on_progress,
            urls=urls,
        ),
    )


@same_parameters(load)
async def aload(path: str | os.PathLike[str] = "demo", **options: object) -> Model:
    """As load(), without blocking the event loop."""
    import asyncio  # a third of the import time of the whole package

    chosen = LoadOptions(**options)  # type: ignore[arg-type]  # as load() has them
    if not chosen.threaded:
        raise ValueError("aload() loads in a thread of its own, and threaded=False has none; call load().")
    loading = asyncio.get_running_loop().run_in_executor(None, open_model, path, chosen)
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(_close_late)  # a load cannot be stopped
        raise


def _close_late(loading: Future[Model]) -> None:
    """Frees a model that nobody waits for any more."""
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()


def open_model(path: str | os.PathLike[str], options: LoadOptions) -> Model:
    """As load()."""
    package = open_requested_package(path, options)
    if options.check:
        package.check()
    with native_call():
        if package.encoder is not None:
            from embedllm.loading.load_encoder import open_encoder

            return open_encoder(package, options)
        return _open_decoder(package, options)


def _open_decoder(package: Package, options: LoadOptions) -> Model:
    """A model that generates text."""
    from embedllm.backends.devices import registry  # these are not in a browser, which has JavaScript's
    from embedllm.loading.device_search import open_first
    from embedllm.sampling.structured.llguidance import TokenGrammars

    check_is_no_head(package)
    if options.adapters is not None:
        from embedllm.package.lora.peft import check_adaptable

        check_adaptable(package)
    tuning = tuning_of(package, options)
    head = head_of(package, options)
    hidden_graph = hidden_graph_of(head)
    search = search_devices(package, options, tuning, hidden_graph=hidden_graph)
    disk = open_disk_store(options.cache_dir, prefix_cache=options.prefix_cache, budget_bytes=options.cache_dir_bytes)
    defaults, tokenizer = read_defaults(package.folder), Tokenizer.open(package.folder)  # before the weights
    template = None
    if options.chat_template is not None:
        template = ChatTemplate(options.chat_template, tokens=tokenizer.named)
    adapters = _read_adapters(package, options)

    def runtime(device: Device) -> RuntimeOptions:
        return options.runtime if options.threads else tuning.runtime(device.name)

    with ExitStack() as opened:
        draft = None
        if head is None:
            device = search.wish if preferred_device(package, tuning) else options.device
            draft = _open_draft(package, tokenizer, options, device, opened)
        engine, memory, package = open_first(package, search, options, runtime=runtime, adapters=adapters,
                                             hidden_graph=hidden_graph)  # fmt: skip
        if package.external is not None:  # its files list few; a package of ours has them in its manifest
            package.add_stop_tokens(tokenizer.ends)
        if head is not None:
            opened.callback(engine.close)
            draft = _open_head(head, package, engine, memory, runtime(engine.device), options)
        opened.pop_all()
    settings = options.kv_key(runtime(engine.device))
    model = Model(
        package,
        engine,
        tokenizer=tokenizer,
        defaults=defaults,
        template=template,
        draft=draft,
        owns_draft=draft is not options.draft,
        grammars=TokenGrammars(tokenizer),
        memory=memory,
        prefix_cache=_prefix_cache(package, engine, options, disk, settings),
        settings=settings,
        max_running=options.max_sequences or max(MAX_RUNNING, max_batch(engine)),
        max_waiting=MAX_WAITING if options.max_waiting is None else options.max_waiting,
        kv_tokens=None if memory is None else memory.kv_tokens,
        is_direct=not options.threaded,
        speculates=registry.speculates(engine.device),
        adapters=None if adapters is None else Adapters(adapters),
        tuned=tuning.describe(engine.device.name, is_overruled=options.threads != 0),
        parse_special=options.parse_special,
        loaded=None if engine.device.memory else LoadedFiles(package.mapped_files),
    )
    if isinstance(engine, WarmsUp):
        model.runner.call(engine.warm_up)  # so that the first reply comes as soon as later ones
    return model


def _read_adapters(package: Package, options: LoadOptions) -> list[Adapter] | None:
    if options.adapters is None:
        return None
    from embedllm.package.lora.peft import read_adapters

    return read_adapters(options.adapters, package.decoder, is_rotated=package.is_rotated)


def _open_draft(
    package: Package,
    tokenizer: ModelCodec,
    options: LoadOptions,
    device: str | Sequence[str] | None,
    opened: ExitStack,
) -> Model | None:
    """The draft model. opened: closes it, where it was opened here."""
    draft = options.draft
    if draft is None:
        return None
    if not isinstance(draft, Model):
        draft = open_model(draft, options.of_draft(device))
        opened.callback(draft.close)
    if draft.runner.is_direct == options.threaded:
        raise ValueError("a model and its draft model are loaded with the same 'threaded'.")
    check_draft(package, tokenizer, draft)
    return draft


def _open_head(
    head: Package,
    package: Package,
    engine: Engine,
    memory: MemoryEstimate,
    runtime: RuntimeOptions,
    options: LoadOptions,
) -> HeadDrafter:
    """A head of the package, which the engine runs. memory: of the package."""
    from embedllm.backends.checks import cannot_run
    from embedllm.backends.devices import registry
    from embedllm.generation.speculation.draft_head import HeadDrafter
    from embedllm.loading.out_of_memory import memory_ran_out

    try:
        opened = registry.open_draft_head(head, engine.device, runtime=runtime, exact=options.exact)
    except (DeviceError, MemoryError, OSError) as error:
        if not ran_out(error):
            raise
        raise cannot_run(engine.device, *memory_ran_out(package, memory, error, head=head.folder.name)) from error
    return HeadDrafter(cast("HeadEngine", opened), LoadedFiles(head.mapped_files), is_direct=not options.threaded)


def _prefix_cache(
    package: Package, engine: Engine, options: LoadOptions, disk: BlockStore | None, settings: str
) -> PrefixCache | None:
    budget = options.prefix_cache
    if budget is None:
        budget = max(PREFIX_CACHE_BYTES, engine.prefix_bytes if isinstance(engine, KeepsPrefixes) else 0)
    if not budget and disk is None:
        return None
    model = model_fingerprint(package, engine.device, settings)
    return PrefixCache(budget, model=model, folder=disk)


def devices() -> list[Device]:
    """What this machine offers, and why the rest is not available.

    A GPU or plug-in whose probe gave wrong numbers is not; one that was never probed is, until load() finds otherwise.
    In a browser the call needs JSPI, which adevices() does not.
    """
    from embedllm.loading.device_list import listing

    return [listed.probed_device for listed in listing()]


async def adevices(*, urls: Mapping[str, str] | None = None) -> list[Device]:
    """As devices(), without blocking the event loop. urls: for a browser; see embedllm.web.aload()."""
    import asyncio

    return await asyncio.to_thread(devices)
