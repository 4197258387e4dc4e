"""Makes docs/families.md from the families' files and from the cases that prove them (tests/support/families.py).

python docs/make_families.py            shows the page
python docs/make_families.py --write    writes it; a test holds it to be current
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "families.md"
_INTRODUCTION = """\
# Model families

Made by `python docs/make_families.py --write` from the first lines of the files in
[export/architectures](../export/architectures) and from the cases in [tests/support/families.py](../tests/support/families.py).

"Verified" says what the tiny random models of a family have in them. Each is made by the configuration class of
transformers 5.23, and for a prompt longer than its window and the steps after it, the logits of our description of it
(by the [NumPy reference](../backends/reference/engine.py), on the checkpoint's own floats) are within 0.001 of transformers',
measured in standard deviations of the logits ([tests/export/architectures/test_families.py](../tests/export/architectures/test_families.py)). The same test finds
a tensor of the checkpoint that the description forgets. No published weights are part of the tests.

Then each is exported ([tests/export/architectures/test_engines.py](../tests/export/architectures/test_engines.py)). On ONNX Runtime's CPU and
on OpenVINO, 16 bits give transformers' logits and 4 bits the reference's, both within 0.001 as above, prompts, steps
and rewound sequences alike; at 32 bits, greedy replies of 32 tokens are transformers', one by one and of prompts of
different lengths at once. Every field that CUDA takes was run there too, in float16, with 4 and with 16 bits:
within 0.05, on an H200 ([cuda.md](cuda.md#families)).

What families have beyond a plain Llama, and what that costs:

- Windows are followed on every device. On `cpu` under Linux their layers also free the KV that no token sees any more
  ([concepts](concepts.md#windows)); elsewhere that of all tokens is kept.
- An expert of a mixture computes only the tokens that chose it, by standard operators: no provider's own mixture
  operator is used. QMoE of ONNX Runtime 1.31 wants the weights of all experts in one tensor, and on the CPU float32
  scales for float32 activations; in a folder the float16 scales of each expert lie behind its weights, so that it
  would take a second copy of both. One thread, 64 experts of which 8 are used (`python
  tests/benchmarks/bench_qmoe.py`, a busy machine): for a token our whole layer took 7.7 ms, 5.7 with 8 experts only,
  QMoE alone 2.9, or 1.1 with 8-bit activations; for 128 tokens ours 19 ms, QMoE alone 155 and 81. DirectML and the
  NPU refuse mixtures, `--method gptq` and the others that read a text do, and adapters have to be merged. OpenVINO
  takes minutes to compile a mixture of hundreds of experts ([openvino.md](openvino.md)).
- Layers that read the keys and values of earlier ones (Gemma 4) keep none of their own; with `kv="int8"` the processor
  copies them at each step. What layers are told of each token by a table of its own is looked up, like an embedding.
  Several streams (Gemma 3n) multiply what is kept of a token between
  layers, not the KV. DirectML refuses layers without keys; methods that read a text, sizes and rotations refuse both.
- Capped scores (Gemma 2) and sinks take ONNX Runtime's slower attention, and capped scores OpenVINO's without blocks,
  so that replies at once take turns there.
- Experts in MXFP4 (gpt-oss) are read as the floats that they stand for, and rounded like others. In 8 bits nothing is
  lost; 4 bits add an error of 7% to the 11% that MXFP4 has itself ([numerics.md](numerics.md#mxfp4)).
- Keys and values that are made of small vectors (DeepSeek, GLM 4.7 Flash, MiniCPM3) are kept whole, of all heads, the
  values filled up to the length of keys, so that every runtime's own attention takes them. The numbers are the model's,
  but a token takes 11 to 85 times the memory of its small vectors, as float16: 324 KB in DeepSeek-V2-Lite and in
  Moonlight, 930 KB in MiniCPM3 4B, 940 KB in GLM 4.7 Flash, 5.7 MB in DeepSeek-V3. DirectML, llama.cpp's importance
  matrices and adapters at run time refuse them.

`embedllm families` lists the same in the terminal. A model_type that is not here is refused, with the nearest one that
is; so is a variant of a family that its file does not describe, by the key and the value of config.json that say so.

"""
_ENCODERS = """
## Models that embed or score texts

From [export/encoders](../export/encoders), proved by the cases in [tests/support/encoders.py](../tests/support/encoders.py): texts of
different lengths at once, longer than the windows, give the vectors or scores that transformers gives of each alone,
with 16 bits within 0.001 of their spread, on ONNX Runtime's CPU, OpenVINO and the reference, and 4 bits are computed as
the reference does ([tests/export/encoders/test_encoders.py](../tests/export/encoders/test_encoders.py)). How to use them:
[guide-embeddings.md](guide-embeddings.md).

"""
_HOW = """
## Add a family in 15 minutes

The example adds HyperCLOVA X SEED; it is not part of the package, and a test does what follows with the text of this
page ([tests/export/architectures/test_docs.py](../tests/export/architectures/test_docs.py)).

1. Read the family's modelling code and its config.json beside Llama's. Here: norms behind attention and mlp as well,
   and four multipliers.
2. Write down what differs, in a file with the name of the model_type, `export/architectures/hyperclovax.py`. What a
   config leaves out has the value that transformers takes for it. A variant that you do not describe is refused
   (`refuse`), never guessed.

```python
\"\"\"HyperCLOVA X SEED Think: norms behind attention and mlp too, multipliers of all that is added.\"\"\"

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures.config import Config
from embedllm.package.architecture import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    names = LLAMA
    if config.flag("use_post_norm", True):
        names = replace(LLAMA, attention_post_norm="post_norm1", mlp_post_norm="post_norm2")
    shape = Shape(
        model_type="hyperclovax",
        names=names,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        scale=config.number_or_none("attention_multiplier", None, above=0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logits_multiplier=config.number("logits_scaling", 1.0),
    )
    return describe_shaped(config, shape)
```

3. Add a line to `FAMILIES` in tests/support/families.py: transformers' configuration class, and values under which every
   peculiarity shows, such as a window shorter than the prompt and multipliers that are not 1.

```text
"hyperclovax": case("hyperclovax", "HyperCLOVAXConfig", "norms behind, all four multipliers",
                    embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.3, logits_scaling=2.0),
```

4. `pytest -m peer tests/export/architectures/test_families.py -k hyperclovax`. A difference from transformers shows as a failure, and so
   does a tensor that was forgotten. Then `python docs/make_families.py --write`.

Where the fields of [Shape](../export/architectures/_shared/decoder_shape.py) and [Decoder](../embedllm/package/architecture.py) do not say what a
family has, a field is missing: it is added there, to
[backends/reference/layers.py](../backends/reference/layers.py), and to both writers of graphs.
"""


def families_page() -> str:
    """The page as it should be."""
    from embedllm.export.architectures import about, families
    from tests.support.families import FAMILIES

    lines = ["| model_type | models | what it has | verified |", "| --- | --- | --- | --- |"]
    for name in families():
        verified = "; ".join(case.verified for case in FAMILIES.values() if case.family == name)
        lines.append(f"| `{name}` | {' | '.join(about(name))} | {verified} |")
    return _INTRODUCTION + "\n".join(lines) + "\n" + _encoders() + _HOW


def _encoders() -> str:
    from embedllm.export.encoders import about, families, reranks
    from tests.support.encoders import ENCODERS

    lines = ["| model_type | models | what it has | reranks | verified |", "| --- | --- | --- | --- | --- |"]
    for name in families():
        verified = "; ".join(case.verified for case in ENCODERS.values() if case.family == name)
        lines.append(f"| `{name}` | {' | '.join(about(name))} | {'yes' if reranks(name) else ''} | {verified} |")
    return _ENCODERS + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the cases are no part of the package
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(families_page(), encoding="utf-8")
    else:
        sys.stdout.write(families_page())
