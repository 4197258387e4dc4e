"""OpenAI's reasoning effort, as the variables that chat templates read."""

from __future__ import annotations

from collections.abc import Mapping

NONE = "none"
# by OpenAI's and Anthropic's names, those of gpt-oss, which other templates follow
LEVELS: Mapping[str, str] = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high",
}  # fmt: skip


def effort_variables(effort: object) -> dict[str, object]:
    """For "none" what turns the thinking of Qwen's and DeepSeek's off; else reasoning_effort.

    A level that only OpenAI has is the lowest of those that templates know; any other is given as it is, since a
    template may have levels of its own.
    """
    if effort == NONE:
        return {"enable_thinking": False, "thinking": False}
    return {"reasoning_effort": LEVELS["minimal"] if effort == "minimal" else effort}
