"""Apertus 1.5 (8B): multimodal checkpoint; text decoder only."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.vision_language import text_of
from embedllm.export.architectures.apertus import NAMES
from embedllm.export.architectures.apertus1p5_text import describe_text
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_text(text_of(config), "apertus1p5", replace(NAMES, model="model.language_model"))
