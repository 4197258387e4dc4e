"""The chat templates that PyPI packages hold: each reads back the calls that it shows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from embedllm.text.chat_template import ChatTemplate
from embedllm.tools.selection import reply_format
from tests.support.real import published
from tests.support.tool_templates import CALLS, TOKENS, check_round_trip

pytestmark = [pytest.mark.real, pytest.mark.slow]

LLAMA_CPP = "xllamacpp==2026.10.11549"  # its source has llama.cpp's models/templates (MIT)
PACKAGES = {
    LLAMA_CPP: "**/models/templates/*.jinja",
    "trl==1.16.0": "trl/chat_templates/*.jinja",  # Apache-2.0
    "axolotl==0.19.0": "axolotl/utils/chat_templates/templates/*.jinja",  # Apache-2.0
}
FAMILIES = {  # llama.cpp's name: the format, what closes the reasoning
    "GLM-4.6": ("glm4_5", "</think>"),
    "GLM-4.7-Flash": ("glm4_5", "</think>"),
    "MiniMax-M2": ("minimax_m2", "</think>"),
    "MiniMax-M3": ("minimax_m3", "</mm:think>"),
    "ByteDance-Seed-OSS": ("seed_oss", "</seed:think>"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command_r7b", "<|END_THINKING|>"),
    "CohereForAI-c4ai-command-r-plus-tool_use": ("command_r", None),
    "Cohere2MoE": ("command_r7b", "<|END_THINKING|>"),
    "unsloth-Apriel-1.5": ("jamba", "</thinking>"),
    "Apriel-1.6-15b-Thinker-fixed": ("jamba", "[BEGIN FINAL RESPONSE]"),
    "LFM2-8B-A1B": ("lfm2", None),
    "LFM2.5-8B-A1B": ("lfm2", "</think>"),
    "LFM2.5-Instruct": ("lfm2", "</think>"),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron_nano_v2", "</think>"),
    "moonshotai-Kimi-K2": ("kimi_k2", None),
    "Kimi-K2-Instruct": ("kimi_k2", None),
    "Kimi-K2-Thinking": ("kimi_k2", "</think>"),
    "Kimi-K3": ("kimi_k3", "<|close|>think<|sep|>"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v3_1", "</think>"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v3_2", "</think>"),
    "deepseek-ai-DeepSeek-V4": ("deepseek_v4", "</think>"),
    "Apertus-8B-Instruct": ("apertus", "<|inner_suffix|>"),
    "GigaChat3-10B-A1.8B": ("gigachat3", None),
    "GigaChat3.1-10B-A1.8B": ("gigachat3_1", None),
    "openbmb-MiniCPM5-1B": ("minicpm5", "</think>"),
    "tencent-Hy3": ("learnt", "</think:opensource>"),
    "upstage-Solar-Open-100B": ("solar", "<|end|>"),
    "meetkai-functionary-medium-v3.1": ("functionary", None),
    "meetkai-functionary-medium-v3.2": ("functionary_v3_2", None),
    "fireworks-ai-llama-3-firefunction-v2": ("firefunction", None),
    "Qwen3.5-4B": ("qwen3_coder", "</think>"),
    "Qwen3-Coder": ("qwen3_coder", None),
    "google-gemma-4-31B-it": ("gemma4", "<channel|>"),
    "openai-gpt-oss-120b": ("harmony", None),
    "muse-glimmer": ("muse", None),
    "IFM-K2-Horizon": ("k2_horizon", "</ifm|think>"),
}
# in the history there is no mark before it, and so no telling it from an answer: the prompt for a reply ends with it
WITHOUT_OPENING = ("Apriel-1.6-15b-Thinker-fixed",)


@cache
def templates(requirement: str) -> list[Path]:
    folder = published(requirement, of_source=".jinja" if requirement == LLAMA_CPP else "")
    return sorted(folder.glob(PACKAGES[requirement]))


@pytest.mark.parametrize("requirement", PACKAGES)
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate],
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])  # fmt: skip
@given(drawn=CALLS, reasoning=st.sampled_from(["", "I think\nso."]), size=st.integers(5, 40))
def test_what_a_published_template_shows_is_read_back(
    requirement: str, drawn: list[tuple[str, dict[str, Any]]], reasoning: str, size: int
) -> None:
    shown = 0
    for path in templates(requirement):
        source = path.read_text(encoding="utf-8")
        if "tool" in source and not path.stem.endswith("_training"):  # the same forms with marks for training
            shown += check_round_trip(source, drawn, "" if path.stem in WITHOUT_OPENING else reasoning, size)
    assert shown > 5


@pytest.mark.parametrize("name", FAMILIES)
def test_a_published_template_tells_its_format(name: str) -> None:
    (path,) = (path for path in templates(LLAMA_CPP) if path.stem == name)
    written = reply_format(ChatTemplate(path.read_text(encoding="utf-8"), tokens=TOKENS))
    found = (written.calls.name, written.reasoning.closing if written.reasoning else None)
    assert found == FAMILIES[name]
