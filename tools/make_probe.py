"""Makes the tiny model that probes run, and writes down what it answers: backends/probe/model/.

    python tools/make_probe.py

Its weights are random from a fixed seed: a device that computes anything wrongly gives other logits, and that is all it
is for. The answers are those of the NumPy reference. Run it again when the format of folders or a graph changes.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from embedllm.backends.probe.probe import ANSWERS, FOLDER, STEPS, answers
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package

LIMIT = 410 << 10  # bytes: what an installation may cost
_SEED = 20261121
_DIGITS = 5  # of a logit, of which the largest is about 4: two more than any device is exact to
CONFIG: dict[str, object] = {
    "model_type": "qwen3",  # for its q and k norms, which some providers apply inside their attention
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "eos_token_id": 0,
}


def main() -> None:
    make(FOLDER)
    size = sum(path.stat().st_size for path in FOLDER.iterdir())
    if size > LIMIT:
        raise SystemExit(f"the probe has {size:,} bytes; expected at most {LIMIT:,}.")
    print(f"{FOLDER}: {size:,} bytes")  # noqa: T201 - a script for the command line


def make(folder: Path) -> None:
    """Writes the package and its answers into a folder, in place of what is there."""
    (folder / ANSWERS.name).unlink(missing_ok=True)  # no part of the package, which would not be replaced with it
    with tempfile.TemporaryDirectory() as scratch:
        # the same bytes wherever it is made: a search sums, in an order of NumPy's
        recipe = Recipe(method="nearest", symmetric=True)
        convert(_write_checkpoint(Path(scratch) / "checkpoint"), folder, recipe, replace=folder.exists())
    with closing(ReferenceEngine(open_package(folder))) as engine:
        rows = [[round(value, _DIGITS) for value in row] for row in answers(engine)]
    partial = folder / "answers.partial"
    partial.write_text(json.dumps({"steps": [list(step) for step in STEPS], "logits": rows}) + "\n", encoding="utf-8")
    partial.replace(folder / ANSWERS.name)


def _write_checkpoint(folder: Path) -> Path:
    """A Hugging Face folder with random weights and a tokenizer of single bytes, which nobody uses."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_safetensors(_tensors()))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    Tokenizer(models.BPE(vocab={byte: at for at, byte in enumerate(alphabet)}, merges=[])).save(
        str(folder / "tokenizer.json")
    )
    return folder


def _tensors() -> dict[str, np.ndarray]:
    size = {key: value for key, value in CONFIG.items() if isinstance(value, int)}
    hidden, inner, head, vocabulary = (
        size[key] for key in ("hidden_size", "intermediate_size", "head_dim", "vocab_size")
    )
    q, kv = size["num_attention_heads"] * head, size["num_key_value_heads"] * head
    random = np.random.default_rng(_SEED)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    def norm(count: int) -> np.ndarray:
        return (1 + random.standard_normal(count) / 10).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(vocabulary, hidden) * np.float32(hidden**0.5),
        "lm_head.weight": matrix(vocabulary, hidden),
        "model.norm.weight": norm(hidden),
    }
    for index in range(size["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        tensors |= {
            f"{layer}.input_layernorm.weight": norm(hidden),
            f"{layer}.self_attn.q_proj.weight": matrix(q, hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(kv, hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(kv, hidden),
            f"{layer}.self_attn.o_proj.weight": matrix(hidden, q),
            f"{layer}.self_attn.q_norm.weight": norm(head),
            f"{layer}.self_attn.k_norm.weight": norm(head),
            f"{layer}.post_attention_layernorm.weight": norm(hidden),
            f"{layer}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{layer}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{layer}.mlp.down_proj.weight": matrix(hidden, inner),
        }
    return tensors


def _safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    header: dict[str, object] = {}
    data = b""
    for name, value in tensors.items():
        span = [len(data), len(data) + value.nbytes]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": span}
        data += value.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


if __name__ == "__main__":
    main()
