"""A model's own defaults for generation, from its generation_config.json."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedllm.errors import PackageError
from embedllm.sampling.options import Sampling

_log = logging.getLogger("embedllm")
_GENAI = "genai_config.json"  # onnxruntime-genai has the same names for them, in its section "search"
# what else it may ask for, and what asks for nothing
_NOT_FOLLOWED = {
    "num_beams": 1, "length_penalty": 1.0, "min_new_tokens": 0, "min_length": 0, "stop_strings": [],
    "begin_suppress_tokens": [], "forced_bos_token_id": None, "forced_eos_token_id": None, "sequence_bias": {},
    "guidance_scale": 1.0, "penalty_alpha": 0.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip
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
        sampling = Sampling(
            **_sampling_options(data),
            repetition_penalty=data.get("repetition_penalty", 1.0),
            no_repeat_ngram=data.get("no_repeat_ngram_size", 0),
            bad_words=data.get("bad_words_ids", ()),
            logit_bias=dict.fromkeys(data.get("suppress_tokens", ()), -math.inf),
        )
        limit = data.get("max_new_tokens")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"max_new_tokens is {limit!r}")
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise PackageError(f"cannot use '{path}': {error}.") from error
    if ignored := [name for name, off in _NOT_FOLLOWED.items() if data.get(name, off) != off]:
        _log.info("'%s' asks for %s, which calls here have to ask for themselves", path, ", ".join(ignored))
    return Defaults(sampling=sampling, max_tokens=limit)


def _sampling_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """The options of Sampling that say how a token is drawn; transformers is greedy unless do_sample is set."""
    if not data.get("do_sample", False):
        return {"temperature": 0}
    return {
        "temperature": data.get("temperature", 1.0),
        "top_k": data.get("top_k", _TOP_K),
        "top_p": data.get("top_p", 1.0),
        "min_p": data.get("min_p", 0.0),
        "typical_p": data.get("typical_p", 1.0),
    }
