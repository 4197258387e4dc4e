"""Names and words are the field's: replaced names and phrases do not come back into code, messages or documents.

The rule: a concept that has a name in a paper, in transformers, ONNX Runtime, llama.cpp or vLLM is called by it.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("embedllm", "backends", "export", "bindings_web", "samples", "tools", "docs", "tests")
LEFT_OUT = ("tests/templates", "tests/golden", "embedllm/demo/", "node_modules", "__pycache__", "/build/", "/dist/")

# replaced identifier: its standard name
NAMES = {
    "KeptRows": "WindowedKvRetention",
    "Knobs": "RuntimeOptions",
    "Places": "Slots",
    "place_count": "max_concurrency",
    "HeldSequence": "CachedSequence",
    "Prefixes": "PrefixCache",
    "KEEPING": "FOOTPRINTS",
    "Row": "NumpyLogits, ArrayLogits",
    "Splits": "PreTokenizer",
    "Guess": "AltUp",
    "Detour": "Laurel",
    "Latent": "MultiHeadLatent",
    "QueryGrowth": "AttentionTemperature",
    "TokenInputs": "PerLayerEmbedding",
    "begun_once": "reject_first_only",
    "without_oldest": "drop_oldest",
    "joined_states": "read_spans",
    "to_its_end": "await_cancellable",
    "model_kind": "model_fingerprint",
    "MOST_WAITING": "MAX_WAITING",
    "_goes_on": "is_granted",
    "is_stuck_while": "is_blocked_by",
    "asked_of": "requested packing",
    "appears_whole": "write_atomically",
    "judged": "probed_device",
    "made_of_told": "per_layer_inputs",
    "packed_turned": "pack_rotated",
    "flavours": "graph_variants",
    "knobs": "runtime options",
    "untracked": "no_telemetry",
    "first_device": "device_search",
    "model_lacks": "support",
    "ov_cut": "logits_slice",
    "gguf_restated": "unfused",
    "common_told": "per_layer_embeddings",
}

# replaced phrase (in any case, across a line break): what is said instead
PHRASES = {
    "a quarter or an eighth of the memory": "int8 or int4 (1/4 or 1/8 of float32)",
    "what guesses the next tokens": "speculative decoding",
    "by default one a physical core": "default: number of physical cores",
    "say on stderr what is chosen": "verbose logging to stderr",
    "told before all else": "system prompt",
    "made alike by it first": "awq",
    "spread what is large in a channel": "Hadamard rotation",
    "draw from the most ordinary tokens": "locally typical sampling",
    "the surprise to hold": "target surprise tau",
    "prolong a repetition": "DRY penalty on repeated sequences",
    "a text that must not come": "banned strings (bad_words)",
    "half-turned heads": "partial rotary embedding",
    "queries that grow": "length-dependent attention temperature",
    "caps its scores": "attention logit soft-capping",
    "capped scores": "attention logit soft-capping",
    "neighbouring values turned": "interleaved RoPE",
    "told of each token": "per-layer embeddings (PLE)",
    "a way beside attention": "LAuReL",
    "made of small vectors": "multi-head latent attention (MLA)",
    "a checkpoint that sees": "vision-language checkpoint; text decoder only",
    "hosting copy": "sharded web copy",
    "begin anew": "start a new conversation",
    "so many": "at most N",
    "anew": "again",
    "is no news": "not actionable",
    "flavour of graph": "graph variant",
    "prompts on one, tokens on the other": "disaggregated prefill/decode",
    "of the least squared error": "MSE-optimal",
    "cuts texts by the rules": "unknown pre-tokenizer",
    "embeds or scores texts": "embedding / reranker (cross-encoder) model",
    "nothing but its graph is known": "third-party graph: no architecture description",
    "guess tokens in advance": "multi-token prediction (MTP)",
    "without effect at temperature": "no effect at temperature",
}


@cache
def files() -> tuple[tuple[str, str], ...]:
    """Path and text of code and documents, but of this file."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for suffix in ("py", "js", "mjs", "html", "md")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    }
    wanted = [
        name
        for name in sorted({*found, "README.md"} - {Path(__file__).relative_to(ROOT).as_posix()})
        if not any(part in f"{name}/" for part in LEFT_OUT)
    ]
    return tuple((name, (ROOT / name).read_text(encoding="utf-8")) for name in wanted)


@cache
def words() -> dict[str, str]:
    """Of each file its text in small letters, one blank between words wherever a line of a text or comment breaks."""
    return {path: re.sub(r"[\s#*]+", " ", text).lower() for path, text in files()}


def identifiers(name: str, text: str) -> Iterator[tuple[int, str]]:
    """The line and the name of each identifier; of JavaScript, words outside of comments that fill a line."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
    elif name.endswith((".js", ".mjs")):
        for number, line in enumerate(text.splitlines(), 1):
            if not line.lstrip().startswith(("//", "*", "/*")):
                yield from ((number, word) for word in re.findall(r"[A-Za-z_$][\w$]*", line))


@cache
def uses_of_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    anywhere = re.compile(rf"\b({'|'.join(NAMES)})\b")
    for path, text in files():
        if anywhere.search(text):
            for line, name in identifiers(path, text):
                if name in found:
                    found[name].append(f"{path}:{line}")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_replaced_names_are_gone(name: str) -> None:
    assert not uses_of_names()[name], f"'{name}' is called {NAMES[name]}"


@pytest.mark.parametrize("phrase", PHRASES)
def test_replaced_phrases_are_gone(phrase: str) -> None:
    pattern = re.compile(rf"\b{re.escape(phrase)}\b".replace(r"\ ", r"[\s#*]+"), re.IGNORECASE)
    uses = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
        for path, text in files()
        if phrase.lower() in words()[path]  # a search of all texts by the pattern takes half a second
        for match in pattern.finditer(text)
    ]
    assert not uses, f"'{phrase}' is said as: {PHRASES[phrase]}"
