"""Vision-language checkpoints written as two GGUF files, text model and vision encoder, as llama.cpp's converters do.

Source: conversion/smolvlm.py, gemma.py, qwenvl.py, qwen3vl.py, llava.py and lfm2.py of llama.cpp; the names of the
package gguf.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from embedllm.images.settings import read_settings
from embedllm.package.tensors import CLIPS
from tests.support.dynamic_vision import START, dynamic_chat_checkpoint
from tests.support.gemma4 import gemma4_checkpoint, gemma4_config
from tests.support.gguf_converters import turned
from tests.support.gguf_files import Change, loaded, write_file, write_gguf
from tests.support.vision import chat_checkpoint, gemma_chat_checkpoint

Tensors = dict[str, np.ndarray]
_LANGUAGE = re.compile(r"^(model\.text_model|model\.language_model|language_model\.model)\.")
_HEAD = "language_model.lm_head.weight"
_VISION = ("model.vision_model.", "model.connector.", "vision_tower.", "multi_modal_projector.", "visual.",
           "model.visual.", "model.vision_tower.", "model.multi_modal_projector.", "model.embed_vision.")  # fmt: skip
_ENDS = (".weight", ".bias", *(f".{end}" for end in CLIPS))
_ARCHITECTURES = {"idefics3": "llama", "gemma3": "gemma3", "mistral3": "mistral3", "qwen2_vl": "qwen2vl",
                  "qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl", "qwen3_5": "qwen35", "lfm2_vl": "lfm2",
                  "gemma4": "gemma4"}  # fmt: skip
_TEXT_TYPES = {"idefics3": "llama", "gemma3": "gemma3_text", "mistral3": "ministral3", "qwen2_vl": "qwen2",
               "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_5": "qwen3_5_text", "lfm2_vl": "lfm2",
               "gemma4": "gemma4_text"}  # fmt: skip

QWEN = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"}
NORMALIZED = {"image_mean": [0.5, 0.375, 0.25], "image_std": [0.25, 0.25, 0.5]}  # exact in float32, as files have them


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The two files."""

    text: Path
    mmproj: Path


@dataclass(frozen=True, kw_only=True)
class _Kind:
    projector: str
    said: Callable[[dict[str, Any]], dict[str, Any]]  # of config.json, behind "clip."
    tensors: Callable[[str, np.ndarray, dict[str, Any]], Tensors]  # of one, under the names that gguf maps


def seeing_checkpoint(folder: Path, family: str) -> Path:
    """A tiny one with an image processor, whose config.json says no more than GGUF files can.

    family: behind that of a Gemma 4 comes its size, "small" or "large".
    """
    config = folder / "config.json"
    if family.startswith("gemma4 "):
        return _gemma4_checkpoint(folder, family.removeprefix("gemma4 "))
    if family == "lfm2_vl":
        return _lfm2_checkpoint(folder)
    if family in QWEN or family == "mistral3":
        dynamic_chat_checkpoint(folder, family)
        changed(folder / "preprocessor_config.json", **NORMALIZED)
    elif family == "idefics3":
        chat_checkpoint(folder)
        changed(config, model_type=family)  # that of SmolVLM is the same but for its name
    else:
        gemma_chat_checkpoint(folder)
        text = json.loads(config.read_text())["text_config"]
        kinds = ["sliding_attention", "full_attention"]
        changed(config, text_config={**text, "query_pre_attn_scalar": 16, "layer_types": kinds})
    return folder


def _gemma4_checkpoint(folder: Path, size: str) -> Path:
    """Whose text_config is as transformers 5.24 writes it; its encoder has positions for the usual budget of tokens and
    rows of whole blocks."""
    config = gemma4_config(size)
    text, vision = config["text_config"], config["vision_config"]
    full = {"head_dim": text["global_head_dim"],
            "num_key_value_heads": text.get("num_global_key_value_heads", text["num_key_value_heads"])}  # fmt: skip
    each = {str(index): full for index, kind in enumerate(text["layer_types"]) if kind == "full_attention"}
    rope = {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    text = {"num_kv_shared_layers": 0, **text, "per_layer_config": each, "rope_parameters": rope,
            "use_double_wide_mlp": False}  # fmt: skip
    vision = {**vision, "position_embedding_size": 280 * vision["pooling_kernel_size"], "hidden_size": 64,
              "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96}  # fmt: skip
    gemma4_checkpoint(folder, config={**config, "text_config": text, "vision_config": vision})
    processor = json.loads((folder / "processor_config.json").read_text())
    del processor["image_processor"]["max_soft_tokens"]
    changed(folder / "processor_config.json", **processor)
    return folder


def _lfm2_checkpoint(folder: Path) -> Path:
    """With the usual numbers of tokens and tiles."""
    dynamic_chat_checkpoint(folder, "lfm2_vl")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    own = {"norm_eps": 1e-5, "conv_L_cache": 3, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0}
    changed(folder / "config.json", text_config={**text, **own, "rope_parameters": {"rope_theta": 1e6}})
    pixels = {"image_processor_type": "Lfm2VlImageProcessorFast", "encoder_patch_size": 4, **NORMALIZED}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    return folder


def changed(path: Path, **values: object) -> None:
    """Writes a JSON object once more, with these values."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_pair(
    folder: Path,
    checkpoint: Path,
    *,
    kind: str = "F32",
    more: Mapping[str, Any] | None = None,
    change: Change = lambda tensors: tensors,
    name: str = "mmproj-model.gguf",
    architecture: str = "",
) -> Pair:
    """A checkpoint's folder as two files in another one.

    kind: of the matrices. more: metadata of the vision encoder besides, or in place of what the checkpoint says; None
    leaves out. change: of its tensors, by their GGUF names. architecture: of the text model; "": the family's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((checkpoint / "config.json").read_text())
    text = write_text(folder / "model.gguf", checkpoint, kind=kind, architecture=architecture)
    return Pair(text=text, mmproj=write_mmproj(folder / name, checkpoint, config, kind=kind, more=more, change=change))


def write_text(path: Path, checkpoint: Path, *, kind: str = "F32", architecture: str = "") -> Path:
    """The text model alone."""
    config = json.loads((checkpoint / "config.json").read_text())
    family, section = config["model_type"], config["text_config"]
    scaling = (section.get("rope_parameters") or {}).get("mrope_section")
    architecture = architecture or _ARCHITECTURES[family]
    more: dict[str, Any] = {}
    if scaling is not None:
        more[f"{architecture}.rope.dimension_sections"] = [*scaling, 0]
    if deepstack := config["vision_config"].get("deepstack_visual_indexes"):
        more[f"{architecture}.n_deepstack_layers"] = len(deepstack)
    whole = loaded(checkpoint / "model.safetensors")
    tensors = {_LANGUAGE.sub("model.", name): whole[name] for name in whole if not name.startswith(_VISION)}
    if _HEAD in tensors:
        tensors["lm_head.weight"] = tensors.pop(_HEAD)
    with tempfile.TemporaryDirectory() as made:
        alone = Path(made)
        tied = "lm_head.weight" not in tensors
        (alone / "config.json").write_text(
            json.dumps({"model_type": _TEXT_TYPES[family], **section, "tie_word_embeddings": tied})
        )
        save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, alone / "model.safetensors")
        shutil.copy(checkpoint / "tokenizer.json", alone)
        template = json.loads((checkpoint / "tokenizer_config.json").read_text()).get("chat_template")
        (alone / "chat_template.jinja").write_text(template)
        more |= whole_vocabulary(checkpoint, section["vocab_size"])
        return write_gguf(path, alone, kind=kind, architecture=architecture, more=more)


def whole_vocabulary(checkpoint: Path, size: int) -> dict[str, Any]:
    """Tokens for all rows of the embedding, as converters pad them; special ones are of the kind CONTROL."""
    data = json.loads((checkpoint / "tokenizer.json").read_text())
    found = {at: (text, 1) for text, at in data["model"]["vocab"].items()}
    found |= {each["id"]: (each["content"], 3 if each["special"] else 4) for each in data["added_tokens"]}
    tokens = [found.get(at, (f"[PAD{at}]", 5)) for at in range(size)]
    return {"tokenizer.ggml.tokens": [text for text, _ in tokens],
            "tokenizer.ggml.token_type": [kind for _, kind in tokens]}  # fmt: skip


def write_mmproj(
    path: Path,
    checkpoint: Path,
    config: dict[str, Any],
    *,
    kind: str = "F32",
    more: Mapping[str, Any] | None = None,
    change: Change = lambda tensors: tensors,
) -> Path:
    """The vision encoder alone."""
    family, vision = config["model_type"], config["vision_config"]
    own, settings = _KINDS[family], read_settings(checkpoint)
    values = {} if settings is None else settings.values
    hidden = vision.get("embed_dim", vision["hidden_size"])
    layers = vision.get("depth", vision.get("num_hidden_layers"))
    said: dict[str, Any] = {
        "has_vision_encoder": True,
        "projector_type": own.projector,
        "vision.projection_dim": config["text_config"]["hidden_size"],
        "vision.image_size": vision.get("image_size", 560),
        "vision.patch_size": vision["patch_size"],
        "vision.embedding_length": hidden,
        "vision.feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),
        "vision.block_count": layers,
        "vision.attention.head_count": vision.get("num_heads", vision.get("num_attention_heads")),
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_mean": values.get("image_mean", [0.5, 0.5, 0.5]),
        "vision.image_std": values.get("image_std", [0.5, 0.5, 0.5]),
        **own.said({**config, "settings": values}),
    }
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    tensors: Tensors = {}
    for source, tensor in loaded(checkpoint / "model.safetensors").items():
        if family == "mistral3" and source.endswith("embed_tokens.weight"):
            tensors["v.token_embd.img_break"] = np.ascontiguousarray(tensor[START])
        if not source.startswith(_VISION):
            continue
        for changed, part in own.tensors(source, tensor, config).items():
            place = names.get_name(changed, try_suffixes=_ENDS)
            tensors[place or changed] = np.ascontiguousarray(part)
    given = {**{f"clip.{key}": value for key, value in said.items()}, **(more or {})}
    return write_file(path, "clip", given, change(tensors), kind=kind)


def _idefics3_keys(config: dict[str, Any]) -> dict[str, Any]:
    longest = config["settings"]["size"]["longest_edge"]
    return {"use_gelu": True, "vision.projector.scale_factor": config["scale_factor"],
            "vision.preproc_image_size": longest}  # fmt: skip


def _gemma3_keys(config: dict[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    side = vision["image_size"] // vision["patch_size"]
    return {"use_gelu": True, "vision.projector.scale_factor": side // int(config["mm_tokens_per_image"] ** 0.5)}


def _qwen2_5_keys(config: dict[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    return {"use_silu": True, "vision.n_wa_pattern": vision["fullatt_block_indexes"][0] + 1,
            "vision.window_size": vision["window_size"]}  # fmt: skip


def _qwen3_keys(config: dict[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    has = [index in vision.get("deepstack_visual_indexes", ()) for index in range(vision["depth"])]
    return {"use_gelu": True, "vision.spatial_merge_size": 2, "vision.is_deepstack_layers": has}


def _pixtral_keys(config: dict[str, Any]) -> dict[str, Any]:
    return {f"use_{config['vision_config']['hidden_act']}": True, "vision.attention.layer_norm_epsilon": 1e-5,
            "vision.spatial_merge_size": config["spatial_merge_size"]}  # fmt: skip


def _gemma4_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Of a file that may have an encoder of sounds, too."""
    vision = config["vision_config"]
    return {"vision.attention.layer_norm_epsilon": vision["rms_norm_eps"], "projector_type": None,
            "vision.projector_type": "gemma4v",
            "vision.projector.scale_factor": vision["pooling_kernel_size"]}  # fmt: skip


def _as_is(name: str, values: np.ndarray, config: dict[str, Any]) -> Tensors:
    return {name: values}


def _gemma3(name: str, values: np.ndarray, config: dict[str, Any]) -> Tensors:
    shift = np.float32(1) if "soft_emb_norm" in name else np.float32(0)
    return {name.replace("_weight", ".weight"): values + shift}


def _patches(name: str, values: np.ndarray) -> Tensors | None:
    if not name.endswith("patch_embed.proj.weight"):
        return None
    return {"v.patch_embd.weight": values[:, :, 0], "v.patch_embd.weight.1": values[:, :, 1]}


def _qwen2(name: str, values: np.ndarray, config: dict[str, Any]) -> Tensors:
    if ".qkv." in name:
        parts = np.split(values, 3)
        return {name.replace("qkv", part): each for part, each in zip("qkv", parts, strict=True)}
    return _patches(name, values) or {name: values}


def _pixtral(name: str, values: np.ndarray, config: dict[str, Any]) -> Tensors:
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        return {name: turned(values, config["vision_config"]["num_attention_heads"])}
    return {name: values}


def _qwen3(name: str, values: np.ndarray, config: dict[str, Any]) -> Tensors:
    name = name.removeprefix("model.")
    if name.startswith("visual.deepstack_merger_list."):
        _, _, number, part, end = name.split(".")
        layer = config["vision_config"]["deepstack_visual_indexes"][int(number)]
        return {f"v.deepstack.{layer}.{part.removeprefix('linear_')}.{end}": values}
    if name.startswith("visual.merger."):
        _, _, part, end = name.split(".")
        place = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}[part]
        return {f"{place}.{end}": values}
    return _patches(name, values) or {name: values}


def _lfm2(name: str, values: np.ndarray, config: dict[str, Any]) -> Tensors:
    """Of the names of published checkpoints, or of those that transformers 5 writes, with a module less."""
    tower = "vision_tower.vision_model."
    changed = name.removeprefix("model.").replace(tower, "vision_tower.").replace("vision_tower.", tower)
    return {changed: _convolution(values) if "patch_embedding.weight" in name else values}


def _gemma4(name: str, values: np.ndarray, config: dict[str, Any]) -> Tensors:
    changed = name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
    if name.endswith("position_embedding_table"):
        changed += ".weight"
    return {changed: _convolution(values) if ".input_proj." in name else np.atleast_1d(values)}


def _convolution(values: np.ndarray) -> np.ndarray:
    """Of a matrix of patches, whose colours come last."""
    side = int((values.shape[1] // 3) ** 0.5)
    return values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)


_KINDS = {
    "idefics3": _Kind(projector="idefics3", said=_idefics3_keys, tensors=_as_is),
    "gemma3": _Kind(projector="gemma3", said=_gemma3_keys, tensors=_gemma3),
    "qwen2_vl": _Kind(projector="qwen2vl_merger", said=lambda config: {}, tensors=_qwen2),
    "qwen2_5_vl": _Kind(projector="qwen2.5vl_merger", said=_qwen2_5_keys, tensors=_qwen2),
    "qwen3_vl": _Kind(projector="qwen3vl_merger", said=_qwen3_keys, tensors=_qwen3),
    "qwen3_5": _Kind(projector="qwen3vl_merger", said=_qwen3_keys, tensors=_qwen3),
    "mistral3": _Kind(projector="pixtral", said=_pixtral_keys, tensors=_pixtral),
    "lfm2_vl": _Kind(
        projector="lfm2", said=lambda config: {"use_gelu": True, "vision.projector.scale_factor": 2}, tensors=_lfm2
    ),
    "gemma4": _Kind(projector="gemma4v", said=_gemma4_keys, tensors=_gemma4),
}
