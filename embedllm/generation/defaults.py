"""A model's own defaults for generation, from its generation_config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.sampling.options import Sampling

_GENAI = "genai_config.json"  # onnxruntime-genai has the same names for them, in its section "search"
_TOP_K = 50  # transformers samples from the best 50 when do_sample is set and nothing else is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a call gets that does not say otherwise."""

    sampling: Sampling
    max_tokens: int | None  # None: what is left of the context


def read_defaults(folder: Path) -> Defaults:
    """The defaults of a folder; greedy and without a limit where it says nothing. Read as transformers reads them.

    Raises PackageError for a damaged file or a value out of its range.
    """
    path = next((path for name in ("generation_config.json", _GENAI) if (path := folder / name).exists()), None)
    if path is None:
        return Defaults(sampling=Sampling(temperature=0), max_tokens=None)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and path.name == _GENAI:
            data = data.get("search", {})
        if not isinstance(data, dict):
            raise ValueError("no JSON object")
        data = {key: value for key, value in data.items() if value is not None}
        penalty = data.get("repetition_penalty", 1.0)
        if not data.get("do_sample", False):
            sampling = Sampling(temperature=0, repetition_penalty=penalty)
        else:
            sampling = Sampling(
                temperature=data.get("temperature", 1.0),
                top_k=data.get("top_k", _TOP_K),
                top_p=data.get("top_p", 1.0),
                min_p=data.get("min_p", 0.0),
                typical_p=data.get("typical_p", 1.0),
                repetition_penalty=penalty,
            )
        limit = data.get("max_new_tokens")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"max_new_tokens is {limit!r}")
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(f"cannot use '{path}': {error}.") from error
    return Defaults(sampling=sampling, max_tokens=limit)
