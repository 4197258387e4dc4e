"""SmolVLM, SmolVLM2 (256M, 500M, 2.2B): vision-language model; SigLIP, pixel shuffle, Llama."""

from __future__ import annotations

from embedllm.export.architectures.config import Config
from embedllm.export.architectures.idefics3 import describe_idefics3
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_idefics3(config, "smolvlm")
