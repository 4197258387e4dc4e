r"""The first token behind an image, beside other engines, which take turns: images are new.

    pip install xllamacpp
    python -m tests.benchmarks.bench_images_beside llama-cpp [--rounds 7] [--threads 2] [--layers 30]

A random model of SmolVLM-256M's shape is written as GGUF: the decoder in Q4_0, its vision encoder in Q8_0. embedllm
exports these (weights bit for bit) and answers on `cpu` and on `openvino`; llama.cpp reads them, with its defaults and
with the number of threads given. The image is a PNG of 512 x 512 pixels. It is one tile for embedllm, as for
transformers, and two for llama.cpp, which adds the image as a whole.

    python -m tests.benchmarks.bench_images_beside write CHECKPOINT
    optimum-cli export openvino -m CHECKPOINT --task image-text-to-text \
        --weight-format int4 --group-size 32 --ratio 1.0 OV
    embedllm export CHECKPOINT PACKAGE --method nearest
    python -m tests.benchmarks.bench_images_beside openvino-genai PACKAGE OV

A random model of Qwen2-VL 2B's shape with 4 of 28 layers and 8 of 32 in its encoder; 448 x 448 pixels, 256 tokens, for
both. Decoder in 4 bits, encoder in 8. optimum-intel 2.2 needs transformers 4.57, so an environment of its own.

    python -m tests.benchmarks.bench_images_beside onnxruntime-genai [qwen2_vl | gemma3] [--rounds 7]
    pip install openvino-genai openvino-tokenizers transformers
    python -m tests.benchmarks.bench_images_beside openvino-genai [qwen2_vl | gemma3] [--rounds 7]

The same model, or one of Gemma 3 4B's shape with 4 of 34 layers and 4 of 27 in its encoder (896 x 896 pixels, 256
tokens), by both from one folder, on `cpu` and on `openvino`. onnxruntime-genai is given PNG files, and so is embedllm.

A request is an image and a text, the reply one token: resizing is part of it. Printed are the first request of each,
then medians and the range in milliseconds.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

import embedllm
from embedllm.export import Recipe, convert
from embedllm.text.chat_template import ChatTemplate
from tests.benchmarks.bench_images import SIDE, TILE_TOKENS, random_checkpoint
from tests.support.dynamic_vision import dynamic_chat_checkpoint
from tests.support.families import BASE, MROPE, QWEN_TOKENS
from tests.support.gguf_mmproj import Pair, changed, write_mmproj, write_text
from tests.support.llama_cpp_server import LlamaCpp
from tests.support.vision import gemma_chat_checkpoint, write_smolvlm_chat

Ask = Callable[[Image.Image], int]  # gives the tokens of the prompt
TEXT = "what is in the picture, and where"
QWEN_SIDE = 448  # pixels
QWEN_VISION = {"depth": 8, "embed_dim": 1280, "hidden_size": 1536, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14,
               "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}  # fmt: skip
QWEN_TEXT = {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2,
             "head_dim": 128, "num_hidden_layers": 4, "vocab_size": 32064, "max_position_embeddings": 8192,
             "rms_norm_eps": 1e-6, "rope_parameters": {**MROPE, "mrope_section": [16, 24, 24]}}  # fmt: skip
GEMMA_SIDE = 896
GEMMA_TEXT = {"hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8, "num_key_value_heads": 4,
              "head_dim": 256, "num_hidden_layers": 4, "vocab_size": 32064, "max_position_embeddings": 8192,
              "query_pre_attn_scalar": 256}  # fmt: skip
GEMMA_VISION = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 4, "num_attention_heads": 16,
                "patch_size": 14, "initializer_range": 0.02}  # fmt: skip
QWEN_PIXELS = {"processor_class": "Qwen2VLProcessor", "patch_size": 14, "min_pixels": 3136, "max_pixels": 1003520,
               "size": {"shortest_edge": 3136, "longest_edge": 1003520}, "image_mean": [0.48, 0.46, 0.41],
               "image_std": [0.27, 0.26, 0.27]}  # fmt: skip


def write_smolvlm(folder: Path, layers: int) -> Pair:
    checkpoint = random_checkpoint(folder, layers)
    write_smolvlm_chat(checkpoint, tile=SIDE, tile_tokens=TILE_TOKENS, longest_edge=SIDE)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.add_tokens(["\n\n"])  # mtmd puts it in front of an image
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    changed(checkpoint / "config.json", model_type="idefics3")  # GGUF has one name for both
    config = json.loads((checkpoint / "config.json").read_text())
    return Pair(
        text=write_text(folder / "model.gguf", checkpoint, kind="Q4_0"),
        mmproj=write_mmproj(folder / "mmproj.gguf", checkpoint, config, kind="Q8_0"),
    )


def write_gemma(folder: Path) -> None:
    gemma_chat_checkpoint(folder, window=1024, tile=GEMMA_SIDE, tile_tokens=256, text=GEMMA_TEXT, vision=GEMMA_VISION)


def write_qwen(folder: Path) -> None:
    """As published checkpoints are: the text model's values beside the encoder's, in words of transformers 4."""
    sections = {"vision_config": QWEN_VISION, "text_config": {**BASE, **QWEN_TEXT}}
    dynamic_chat_checkpoint(folder, "qwen2_vl", {**QWEN_TOKENS, "model_type": "qwen2_vl", **sections})
    changed(folder / "preprocessor_config.json", **QWEN_PIXELS)
    changed(folder / "tokenizer_config.json", tokenizer_class="Qwen2TokenizerFast", processor_class="Qwen2VLProcessor")
    config = json.loads((folder / "config.json").read_text())
    text = {key: value for key, value in config.pop("text_config").items() if value is not None}
    del text["rope_parameters"]
    text |= {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "rope_theta": 1e6, "hidden_act": "silu",
             "architectures": ["Qwen2VLForConditionalGeneration"], "video_token_id": 303}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**text, **config}))


def picture(random: np.random.Generator, side: int) -> Image.Image:
    """A square in noise."""
    pixels = random.integers(0, 40, (side, side, 3), dtype=np.uint8)
    top, left = random.integers(0, side // 2, 2)
    pixels[top : top + 200, left : left + 200] += random.integers(40, 200, 3, dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> str:
    return base64.b64encode(png_bytes(image)).decode()


def png_bytes(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def ours(stack: ExitStack, package: Path, device: str, *, as_file: bool = False) -> Ask:
    llm = stack.enter_context(embedllm.load(package, device=device))

    def ask(image: Image.Image) -> int:
        given = png_bytes(image) if as_file else image
        content = [{"type": "image", "image": given}, {"type": "text", "text": TEXT}]
        message: Any = {"role": "user", "content": content}  # an image is no JSON
        return llm.chat([message], temperature=0, max_tokens=1).statistics.prompt_tokens

    return ask


def llama_cpp(pair: Pair, threads: int) -> Ask:
    server = LlamaCpp(pair.text, mmproj=pair.mmproj, context=2048, threads=threads)
    text = f"<|im_start|>user: {server.image_marker}{TEXT}<|im_end|>\nAssistant:"

    def ask(image: Image.Image) -> int:
        prompt = {"prompt_string": text, "multimodal_data": [png(image)]}
        return server.post("completion", prompt=prompt, temperature=0, n_predict=1)["tokens_evaluated"]

    return ask


def openvino_genai(folder: Path, **properties: str) -> Ask:
    genai, openvino = (importlib.import_module(name) for name in ("openvino_genai", "openvino"))
    pipeline = genai.VLMPipeline(os.fspath(folder), "CPU", **properties)

    def ask(image: Image.Image) -> int:
        pixels = openvino.Tensor(np.asarray(image)[None])
        reply = pipeline.generate(TEXT, images=[pixels], max_new_tokens=1, do_sample=False)
        return reply.perf_metrics.get_num_input_tokens()

    return ask


def openvino_genai_in_floats(folder: Path) -> dict[str, Ask]:
    """Its best settings, where a processor's bf16 is slow."""
    return {"openvino-genai, float32": openvino_genai(folder, INFERENCE_PRECISION_HINT="f32")}


def onnxruntime_genai(folder: Path) -> Ask:
    og = importlib.import_module("onnxruntime_genai")
    model = og.Model(os.fspath(folder))
    processor, message = (
        model.create_multimodal_processor(),
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": TEXT}]},
    )
    prompt = ChatTemplate.open(folder).render([message], add_generation_prompt=True)
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=1024)

    def ask(image: Image.Image) -> int:
        inputs = processor(prompt, images=og.Images.open_bytes(png_bytes(image)))
        generator = og.Generator(model, parameters)
        generator.set_inputs(inputs)
        generator.generate_next_token()
        return len(generator.get_sequence(0)) - 1

    return ask


def measure(engines: Mapping[str, Ask], side: int, rounds: int) -> None:
    took: dict[str, list[float]] = {name: [] for name in engines}
    random = np.random.default_rng(0)
    for _ in range(rounds + 1):
        image = picture(random, side)
        for name, ask in engines.items():
            began = time.perf_counter()
            tokens = ask(image)
            took[name].append(1e3 * (time.perf_counter() - began))
            if len(took[name]) == 1:
                print(f"{name}: {tokens} tokens; the first request {took[name][0]:.0f} ms", flush=True)
    for name, (_, *times) in took.items():
        print(f"{name}: {statistics.median(times):.0f} ms ({min(times):.0f}-{max(times):.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["llama-cpp", "write", "openvino-genai", "onnxruntime-genai"])
    parser.add_argument("folders", nargs="*", type=Path, help="or the shape")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=30, help="of SmolVLM's decoder")
    options = parser.parse_args()
    if options.what == "write":
        (folder,) = options.folders
        write_qwen(folder)
        return
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        if options.what == "llama-cpp":
            pair = write_smolvlm(Path(made), options.layers)
            package, side = convert(pair.text, Path(made) / "package", mmproj=pair.mmproj), SIDE
            engines = {f"embedllm, {device}": ours(stack, package, device) for device in ("cpu", "openvino")}
            engines["llama.cpp, defaults"] = llama_cpp(pair, 0)
            engines[f"llama.cpp, {options.threads} threads"] = llama_cpp(pair, options.threads)
        elif options.what == "onnxruntime-genai" or len(options.folders) < 2:
            is_gemma, is_onnx = options.folders == [Path("gemma3")], options.what == "onnxruntime-genai"
            (write_gemma if is_gemma else write_qwen)(Path(made) / "checkpoint")
            package = convert(Path(made) / "checkpoint", Path(made) / "package", Recipe(method="nearest"),
                              genai_images=is_onnx, openvino_images=not is_onnx)  # fmt: skip
            device, theirs = ("cpu", onnxruntime_genai) if is_onnx else ("openvino", openvino_genai)
            engines = {f"embedllm, {device}": ours(stack, package, device, as_file=is_onnx)}
            side = GEMMA_SIDE if is_gemma else QWEN_SIDE
            engines[options.what] = theirs(package)
            if not is_onnx:
                engines |= openvino_genai_in_floats(package)
        else:
            package, theirs = options.folders
            engines, side = {"embedllm, openvino": ours(stack, package, "openvino")}, QWEN_SIDE
            engines["openvino-genai"] = openvino_genai(theirs)
            engines |= openvino_genai_in_floats(theirs)
        measure(engines, side, options.rounds)


if __name__ == "__main__":
    main()
