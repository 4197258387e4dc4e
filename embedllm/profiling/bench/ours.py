"""This library as an engine that is measured: through its public API, as an application would use it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from embedllm.backends.devices.drivers import find_family
from embedllm.backends.driver import Capabilities
from embedllm.files.safetensors_header import read_header
from embedllm.files.version import __version__
from embedllm.kv_cache.prefix_cache import PREFIX_CACHE_BYTES
from embedllm.loading.load import load
from embedllm.package.architecture.mlp import Moe
from embedllm.package.package import Package
from embedllm.package.packing import packings
from embedllm.package.tensors import kv_bytes, linears, norms
from embedllm.profiling.bench.engine import About, Facts
from embedllm.profiling.bench.workload import CONCURRENT, STRUCTURED
from embedllm.sampling.options import Sampling

_GREEDY = Sampling(temperature=0)


class Ours:
    """A package folder on one of our devices. Speculation is off, nothing is tuned, and all else as load() has it."""

    def __init__(self, folder: str, *, device: str, threads: int, exact: bool, prefix_cache: bool) -> None:
        size = PREFIX_CACHE_BYTES if prefix_cache else 0
        self._model = load(folder, device=device or None, threads=threads, exact=exact, prefix_cache=size, tuned=False)
        self._threads = threads
        self._exact = exact

    @property
    def about(self) -> About:
        package, device = self._model.package, self._model.device
        name, _, version = device.backend.partition(" ")
        kv = kv_bytes_per_token(package, device.name.rpartition("+")[2], exact=self._exact)
        return About(
            **asdict(package_facts(package, context=self._model.context, kv_bytes_per_token=kv)),
            versions={"embedllm": __version__, name: version},
            device=device.name + (", exact" if self._exact else ""),
            hardware=device.description,
            on_host=all(_capabilities(part).uses_host_memory for part in device.name.split("+")),
            threads=self._threads,
            keeps=True,
            can=(STRUCTURED, CONCURRENT),
        )

    def run(self, tokens: Sequence[int], count: int) -> list[float]:
        return self._timed(tokens, count)

    def structured(self, tokens: Sequence[int], count: int) -> list[float]:
        return self._timed(tokens, count, response_format=make_response_format(count))

    def batch(self, prompts: Sequence[Sequence[int]], count: int) -> float:
        start = time.perf_counter()
        replies = self._model.generate_batch([list(prompt) for prompt in prompts], _GREEDY, max_tokens=count,
                                             stop_tokens=(), speculate="off")  # fmt: skip
        seconds = time.perf_counter() - start
        _check([len(reply.tokens) for reply in replies], count)
        return seconds

    def _timed(self, tokens: Sequence[int], count: int, **options: Any) -> list[float]:  # noqa: ANN401 - of a reply
        start = time.perf_counter()
        chunks = self._model.stream(list(tokens), _GREEDY, max_tokens=count, stop_tokens=(), speculate="off", **options)
        times = [time.perf_counter() - start for chunk in chunks if chunk.token is not None]
        _check([len(times)], count)
        return times


def _check(lengths: Sequence[int], count: int) -> None:
    if wrong := [length for length in lengths if length != count]:
        raise ValueError(f"a reply has {wrong[0]} tokens; expected {count}. Take a shorter --prompt or --depth.")


def make_response_format(count: int) -> dict[str, object]:
    """A response_format that no reply of fewer tokens fulfils: a list of that many small objects."""
    entry = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 24}, "size": {"type": "integer"},
                       "done": {"type": "boolean"}},
        "required": ["name", "size", "done"],
        "additionalProperties": False,
    }  # fmt: skip
    schema = {"type": "array", "items": entry, "minItems": count}
    return {"type": "json_schema", "json_schema": {"name": "entries", "schema": schema}}


def package_facts(package: Package, *, context: int, kv_bytes_per_token: float | None) -> Facts:
    """Of a folder of ours."""
    bits, group = layers_packing(package)
    return Facts(
        model=package.name,
        weights_sha256=package.stored.sha256,
        weights_bytes=package.stored.bytes,
        bits=bits,
        group=group,
        vocabulary=package.architecture.vocabulary,
        context=context,
        step_bytes=step_bytes(package),
        kv_bytes_per_token=kv_bytes_per_token,
    )


def step_bytes(package: Package) -> int:
    """Bytes of the weights file that a decoding step reads: matrices, norms, the head; of an embedding only a row.

    Of a mixture those of as many experts as a token has.
    """
    decoder = package.decoder
    shares = {norm.name: 1.0 for norm in norms(decoder)} | {decoder.head.name: 1.0}
    for layer in decoder.layers:
        shares |= dict.fromkeys((linear.name for linear in linears(layer)), 1.0)
        if isinstance(layer.mlp, Moe):
            moe = layer.mlp
            gates = (moe.router,) if moe.shared_gate is None else (moe.router, moe.shared_gate)
            shares |= dict.fromkeys((gate.name for gate in gates), 1.0)
            of_experts = (one.name for expert in moe.experts for one in (expert.gate, expert.up, expert.down) if one)
            shares |= dict.fromkeys(of_experts, moe.top_k / len(moe.experts))
    tensors = read_header(package.weights).tensors
    return round(sum(tensor.length * shares.get(name.rpartition(".")[0], 0.0) for name, tensor in tensors.items()))


def kv_bytes_per_token(package: Package, device: str, *, exact: bool) -> float | None:
    """That attention reads of each token before; None for devices whose KV was not looked at."""
    can = _capabilities(device)
    footprint, graphs = can.footprints.get(exact), can.graphs(package, exact=exact)
    if footprint is None:
        return None
    kv_type = graphs[0].kv if graphs else ""
    return kv_bytes(package.architecture, 1, 1, kv=kv_type) * footprint.kv_bits / 8


def _capabilities(device: str) -> Capabilities:
    family = find_family(device)
    return Capabilities() if family is None else family.capabilities_of(device)


def layers_packing(package: Package) -> tuple[int | None, int | None]:
    """Bits and group of the layers' matrices; None where they are mixed, and floats have no group."""
    layers, stored = package.decoder.layers, packings(package.manifest)
    bits_and_groups = {(stored[m.name].bits, stored[m.name].group_size) for layer in layers for m in linears(layer)}
    bits, groups = ({one[at] for one in bits_and_groups} for at in (0, 1))
    (only,) = bits if len(bits) == 1 else (None,)
    (group,) = groups if len(groups) == 1 and max(bits) <= 8 else (None,)
    return only, group
