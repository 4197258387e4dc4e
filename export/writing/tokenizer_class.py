"""The class that transformers 5.24 reads a checkpoint's tokenizer with, where it splits at bytes by its own rule.

Such a class makes its pre-tokenizer itself, with the add_prefix_space of tokenizer_config.json, whatever tokenizer.json
has; all others take tokenizer.json as it is. tests/export/test_tokenizer_file.py compares with transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

_BYTE_LEVEL = {
    "BartTokenizer", "CodeGenTokenizer", "CohereTokenizer", "DebertaTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer",
    "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "RobertaTokenizer",
}  # fmt: skip
# by the model_type, of a checkpoint that names no class
_OF_MODELS = {
    "cohere": "CohereTokenizer", "cohere2": "CohereTokenizer", "gpt2": "GPT2Tokenizer", "gpt_neo": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer", "gptj": "GPT2Tokenizer", "internvl": "Qwen2Tokenizer", "jais2": "GPT2Tokenizer",
    "mpt": "GPTNeoXTokenizer", "olmo": "GPTNeoXTokenizer", "olmoe": "GPTNeoXTokenizer", "opt": "GPT2Tokenizer",
    "phi": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen2_5_vl": "Qwen2Tokenizer", "qwen2_moe": "Qwen2Tokenizer",
    "qwen2_vl": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "qwen3_5": "Qwen3_5Tokenizer",
    "qwen3_5_moe": "Qwen3_5Tokenizer", "qwen3_5_moe_text": "Qwen3_5Tokenizer", "qwen3_5_text": "Qwen3_5Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer", "qwen3_next": "Qwen2Tokenizer", "qwen3_vl": "Qwen2Tokenizer",
    "qwen3_vl_moe": "Qwen2Tokenizer", "roberta": "RobertaTokenizer", "starcoder2": "GPT2Tokenizer",
}  # fmt: skip
# of these it does not ask what class the checkpoint names
_ALWAYS = {"qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"}
_AS_IT_IS = {
    "ernie4_5", "ernie4_5_moe", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt_bigcode", "granite", "granitemoe",
    "granitemoehybrid", "granitemoeshared", "hyperclovax", "internlm2", "internlm3", "iquestcoder", "minicpm3",
    "minimax_m2", "ministral", "ministral3", "mistral", "mistral3", "mixtral", "modernbert", "nemotron", "olmo2",
    "olmo3", "olmo_hybrid", "paddleocr_vl", "phi3", "phimoe", "smolvlm", "stablelm",
}  # fmt: skip


def byte_level_class(config: Mapping[str, object], tokenizer_config: Mapping[str, object]) -> str | None:
    """Its name; None where tokenizer.json counts as it is.

    config, tokenizer_config: config.json and tokenizer_config.json.
    """
    model_type = str(config.get("model_type", ""))
    registered = _OF_MODELS.get(model_type)
    if model_type in _AS_IT_IS or model_type in _ALWAYS:
        return registered
    named = tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class")
    name = named.removesuffix("Fast") if isinstance(named, str) else registered
    return name if name in _BYTE_LEVEL else None
