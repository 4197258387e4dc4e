"""adapter_config.json of PEFT: how strong a LoRA adapter is, and what in it would need more than two products."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from embedllm.errors import PackageError
from embedllm.files.json_object import required_json_object

CONFIG = "adapter_config.json"
_INSTEAD = "Merge the adapter with peft (merge_and_unload) and export the result."
# of what would change more than x @ A @ B: the only values that are followed
_PLAIN: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False, None),
    "use_rslora": (False, True, None),
    # others change the weights below the adapter, which are not here; these only say how its training began
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
# what is read below; what says how it was trained; what says again what the tensors say
_IDLE = {
    "r", "lora_alpha", "rank_pattern", "alpha_pattern", "target_modules",
    "auto_mapping", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode",
    "layers_pattern", "layers_to_transform", "loftq_config", "lora_ga_config", "runtime_config",
}  # fmt: skip
_LONGEST_PATTERN = 200  # letters
_MOST_REPEATS = 3  # each multiplies the time of a search by the length of a name

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """What a LoRA adapter's own file says of it."""

    rank: int
    alpha: float
    ranks: Mapping[str, int]  # of modules whose names end as these patterns say
    alphas: Mapping[str, float]
    roots: bool  # rank-stabilized: alpha over the root of the rank
    targets: tuple[str, ...]  # ends of the names of modules; none: they are named by a pattern

    def rank_of(self, module: str) -> int:
        return _match_pattern(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What the product with A and B is multiplied by."""
        rank, alpha = self.rank_of(module), _match_pattern(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.roots else alpha / rank


def read_config(path: Path) -> PeftConfig:
    """Raises PackageError for what is missing, damaged, or asks for more than two products beside a matrix."""
    data = required_json_object(path, "a LoRA adapter as PEFT saves it")
    _check_plain(data, path)
    targets = data.get("target_modules")
    return PeftConfig(
        rank=_rank(data.get("r"), "r", path),
        alpha=_alpha(data.get("lora_alpha"), "lora_alpha", path),
        ranks={key: _rank(value, key, path) for key, value in _patterns(data, "rank_pattern", path)},
        alphas={key: _alpha(value, key, path) for key, value in _patterns(data, "alpha_pattern", path)},
        roots=data.get("use_rslora") is True,
        targets=tuple(map(str, targets)) if isinstance(targets, list) else (),
    )


def _check_plain(data: Mapping[str, object], path: Path) -> None:
    for key, followed in _PLAIN.items():
        if (value := data.get(key, followed[0])) not in followed:
            choices = " or ".join(json.dumps(one) for one in followed if one is not None)
            raise PackageError(f"'{path}' has '{key}' {json.dumps(value)}; followed is {choices}. {_INSTEAD}")
    for key, value in data.items():
        # numbers and texts belong to a switch, a list or an object, which is refused if it is on
        if key not in _PLAIN and key not in _IDLE and (value is True or (isinstance(value, list | dict) and value)):
            raise PackageError(f"'{path}' has '{key}' {json.dumps(value)[:80]}, which is not followed. {_INSTEAD}")


def _rank(value: object, key: str, path: Path) -> int:
    if type(value) is not int or value < 1:
        raise PackageError(f"'{path}' gives the rank '{key}' as {value!r}; expected a whole number >= 1.")
    return value


def _alpha(value: object, key: str, path: Path) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise PackageError(f"'{path}' gives the strength '{key}' as {value!r}; expected a number.")
    return float(value)


def _patterns(data: Mapping[str, object], key: str, path: Path) -> list[tuple[str, object]]:
    patterns = data.get(key) or {}
    if not isinstance(patterns, dict):
        raise PackageError(f"'{path}' has '{key}' {json.dumps(patterns)[:80]}; expected an object.")
    for pattern in patterns:
        # groups could be nested repeats, which take time without end
        if "(" in pattern or len(pattern) > _LONGEST_PATTERN:
            raise PackageError(f"'{path}' has {pattern!r:.80} in '{key}'; followed are patterns without groups.")
        if sum(map(pattern.count, "*+?{")) > _MOST_REPEATS:
            raise PackageError(
                f"'{path}' has {pattern!r:.80} in '{key}'; followed are patterns with at most {_MOST_REPEATS} repeats."
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise PackageError(f"'{path}' has {pattern!r:.80} in '{key}', which is no pattern: {error}.") from error
    return list(patterns.items())


def _match_pattern(values: Mapping[str, _Number], module: str, otherwise: _Number) -> _Number:
    """Of the first pattern that a module's name ends as. Source: get_pattern_key of PEFT 0.21."""
    return next((v for pattern, v in values.items() if re.match(rf"(.*\.)?({pattern})$", module)), otherwise)
