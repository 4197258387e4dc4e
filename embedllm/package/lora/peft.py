"""Reads a LoRA adapter as PEFT saves it: adapter_config.json beside adapter_model.safetensors. No torch, no peft."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import PackageError
from embedllm.files.float_types import FLOATS, to_float32
from embedllm.files.home_path import expanded
from embedllm.files.safetensors_header import Tensor, read_header
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Linear
from embedllm.package.hadamard import rotated_factors
from embedllm.package.lora.adapter import Adapter
from embedllm.package.lora.peft_config import CONFIG, PeftConfig, read_config
from embedllm.package.tensors import linears

if TYPE_CHECKING:
    from embedllm.package.package import Package
    from embedllm.types import F32

WEIGHTS = "adapter_model.safetensors"
_BEFORE = "base_model.model."  # the model's own names
_A, _B = ".lora_A.weight", ".lora_B.weight"


def read_adapter(name: str, path: str | os.PathLike[str], decoder: Decoder, *, is_rotated: bool = False) -> Adapter:
    """The adapter in a folder, or in a safetensors file with its adapter_config.json beside it.

    is_rotated: the model's value heads are rotated (Package.is_rotated); so are the adapter's then.
    Raises PackageError for what is missing, damaged, of another model, or not followed: DoRA, biases, whole modules,
    embeddings, the head.
    """
    weights, config_path = _files(expanded(path))
    config = read_config(config_path)
    tensors = read_header(weights).tensors
    all_matrices = [linear for layer in decoder.layers for linear in linears(layer)]
    matrices = {linear.source: linear for linear in all_matrices if linear.origin is None}
    _check_places(tensors, [linear.source for linear in all_matrices if linear.origin is not None], decoder)
    pairs = _pairs(tensors, matrices, weights)
    _check_targets(config, pairs, matrices, weights)
    factors: dict[str, tuple[F32, F32]] = {}
    digest = sha256()
    for module in sorted(pairs):
        linear = matrices[module]
        _check_shapes(pairs[module], linear, config.rank_of(module), weights)
        a, b = (_read(tensor, module) for tensor in pairs[module])
        scale = config.scale_of(module) * linear.weight_multiplier
        a, b = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T * np.float32(scale))
        factors[linear.name] = a, b
        digest.update(f"{linear.name} {a.shape} {b.shape};".encode())
        digest.update(a.data)
        digest.update(b.data)
    if is_rotated:
        factors = rotated_factors(decoder, factors)
    return Adapter(name=name, sha256=digest.hexdigest(), factors=factors)


def read_adapters(
    paths: Mapping[str, str | os.PathLike[str]], decoder: Decoder, *, is_rotated: bool = False
) -> list[Adapter]:
    """By their names, as read_adapter() reads each. Raises ValueError for what is no such mapping."""
    if not isinstance(paths, Mapping) or not all(isinstance(name, str) and name for name in paths):
        raise ValueError(f"adapters is {paths!r:.80}; expected a dict from names to folders of adapters.")
    return [read_adapter(name, path, decoder, is_rotated=is_rotated) for name, path in paths.items()]


def check_adaptable(package: Package) -> None:
    """Raises PackageError for mixtures of experts, and for matrices that read other than adapters were trained for."""
    if package.decoder.is_mixture:
        raise PackageError(
            f"'{package.folder}' has a mixture of experts, and adapters at run time are not for such. Merge the "
            "adapter when exporting (--lora)."
        )
    if package.decoder.uses_mla:
        raise PackageError(
            f"'{package.folder}' makes keys and values of small vectors, and adapters at run time are not for such. "
            "Merge the adapter when exporting (--lora)."
        )
    recipe = package.manifest.get("recipe")
    method = recipe.get("method") if isinstance(recipe, dict) else None
    if isinstance(method, str) and "awq" in method:
        raise PackageError(
            f"'{package.folder}' was exported by the method '{method}', which scales what its matrices read; adapters "
            "are for what they read before. Merge the adapter when exporting (--lora), or export by another method."
        )


def _files(path: Path) -> tuple[Path, Path]:
    """Weights and configuration."""
    if path.is_dir():
        if not (path / WEIGHTS).exists():
            others = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
            raise PackageError(f"there is no '{WEIGHTS}' in '{path}' (there is {others}); save it with peft >= 0.7.")
        return path / WEIGHTS, path / CONFIG
    if not path.exists():
        raise PackageError(f"there is no adapter '{path}'; expected a folder that PEFT saved, or its safetensors file.")
    return path, path.parent / CONFIG


def _check_places(tensors: Iterable[str], others: Sequence[str], decoder: Decoder) -> None:
    """others: matrices that the checkpoint has inside a larger one, or with its rows in another order."""
    for name in tensors:
        module = name.removeprefix(_BEFORE).removesuffix(_A).removesuffix(_B)
        if module in others:
            raise PackageError(
                f"the adapter changes '{module}'; a '{decoder.model_type}' checkpoint has that inside a larger matrix, "
                "or its rows in another order, and adapters of such are not followed. Merge it with PEFT "
                "(merge_and_unload) and export what that saves."
            )


def _pairs(tensors: Mapping[str, Tensor], matrices: Iterable[str], path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of each module that has them. Raises PackageError for any other tensor."""
    modules: dict[str, None] = {}
    for name in tensors:
        end = next((end for end in (_A, _B) if name.endswith(end)), None)
        module = name.removeprefix(_BEFORE).removesuffix(end or "")
        if end is None or not name.startswith(_BEFORE) or module not in matrices:
            kinds = ", ".join(sorted({matrix.rsplit(".", 1)[-1] for matrix in matrices}))
            raise PackageError(
                f"'{path}' has the tensor '{name}', which is not followed; expected names such as "
                f"'{_BEFORE}{next(iter(matrices), '...')}{_A}', of the layers' {kinds or 'matrices'}."
            )
        modules[module] = None
    if not modules:
        raise PackageError(f"'{path}' has no tensors; expected pairs of lora_A and lora_B.")
    for name in (f"{_BEFORE}{module}{end}" for module in modules for end in (_A, _B)):
        if name not in tensors:
            raise PackageError(f"'{path}' has no tensor '{name}', but the other of its pair. Save the adapter again.")
    return {module: (tensors[f"{_BEFORE}{module}{_A}"], tensors[f"{_BEFORE}{module}{_B}"]) for module in modules}


def _check_targets(config: PeftConfig, modules: Iterable[str], matrices: Iterable[str], path: Path) -> None:
    """A target that the model has and the file lacks was left out when it was written."""
    for target in config.targets:
        named, there = ([name for name in names if f".{name}".endswith(f".{target}")] for names in (matrices, modules))
        if named and not there:
            raise PackageError(f"'{path}' has no tensors of '{target}', which its '{CONFIG}' lists. Save it again.")


def _check_shapes(pair: tuple[Tensor, Tensor], linear: Linear, rank: int, path: Path) -> None:
    shapes = (rank, linear.columns), (linear.rows, rank)
    for tensor, kind, shape in zip(pair, ("lora_A", "lora_B"), shapes, strict=True):
        if tensor.shape != shape:
            raise PackageError(
                f"'{path}': {kind} of '{linear.source}' is {list(tensor.shape)}; expected {list(shape)}, by the rank "
                f"{rank} of its '{CONFIG}' and the model's sizes. Is it an adapter of this model?"
            )
        if tensor.dtype not in FLOATS:
            raise PackageError(
                f"'{path}': {kind} of '{linear.source}' is {tensor.dtype}; expected {', '.join(FLOATS)}."
            )


def _read(tensor: Tensor, module: str) -> F32:
    raw = bytearray(tensor.length)
    try:
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            count = file.readinto(raw)
    except OSError as error:
        raise PackageError(f"cannot read '{tensor.file}': {error.strerror or error}.") from error
    if count != tensor.length:
        raise PackageError(f"'{tensor.file}' ended while it was read; was it changed meanwhile?")
    values = to_float32(raw, tensor.dtype).reshape(tensor.shape)
    if not np.isfinite(values).all():
        raise PackageError(f"'{tensor.file}': the numbers of '{module}' are not all finite. Train it again.")
    return values
