"""The sizes of a model whose config.json does not say them: the defaults of its configuration class in transformers.

Such a class writes a 'text_config' without what equals them. tests/export/architectures/test_defaults.py compares.
"""

from __future__ import annotations

from embedllm.export.architectures.config import Config

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_TEXT = "_text"  # behind the model_type of a vision-language model, that of its text model
# By model_type, of SIZES; None: it has no such default, or one that follows from the others
_DEFAULTS: dict[str, tuple[int | None, ...]] = {
    "apertus": (131_072, 4096, 14_336, 32, 32, None, None, 65_536),
    "apertus1p5_text": (266_752, 4096, 14_336, 32, 32, None, None, 65_536),
    "arcee": (32_000, 2560, 18_432, 32, 32, None, None, 4096),
    "cohere": (256_000, 8192, 22_528, 40, 64, None, None, 8192),
    "cohere2": (256_000, 8192, 22_528, 40, 64, None, None, 8192),
    "deepseek_v2": (102_400, 4096, 11_008, 32, 32, None, None, 2048),
    "deepseek_v3": (129_280, 7168, 18_432, 61, 128, 128, None, 4096),
    "dots1": (152_064, 4608, 10_944, 62, 32, 32, None, 2048),
    "ernie4_5": (103_424, 1024, 3072, 18, 16, 2, 128, 131_072),
    "ernie4_5_moe": (103_424, 2560, 12_288, 28, 20, 4, None, 131_072),
    "exaone": (102_400, 4096, 14_336, 32, 32, 8, None, 4096),
    "exaone4": (102_400, 4096, 16_384, 32, 32, 32, None, 2048),
    "exaone_moe": (102_400, 4096, 16_384, 32, 32, 32, None, 2048),
    "falcon": (65_024, 4544, None, 32, 71, None, None, 2048),
    "falcon_h1": (128_000, 4096, 14_336, 32, 32, 8, None, 8192),
    "gemma": (256_000, 3072, 24_576, 28, 16, 16, 256, 8192),
    "gemma2": (256_000, 2304, 9216, 26, 8, 4, 256, 8192),
    "gemma3_text": (262_208, 2304, 9216, 26, 8, 4, 256, 131_072),
    "gemma3n_text": (262_400, 2048, 16_384, 35, 8, 2, 256, 32_768),
    "gemma4_text": (262_144, 2304, 9216, 30, 8, 4, 256, 131_072),
    "glm": (151_552, 4096, 13_696, 40, 32, 2, 128, 131_072),
    "glm4": (151_552, 4096, 13_696, 40, 32, 2, 128, 131_072),
    "glm4_moe": (151_552, 4096, 10_944, 46, 96, 8, None, 131_072),
    "glm4_moe_lite": (154_880, 2048, 10_240, 47, 20, 20, 64, 202_752),
    "gpt2": (50_257, 768, None, 12, 12, None, None, 1024),
    "gpt_neox": (50_432, 6144, 24_576, 44, 64, None, None, 2048),
    "gpt_oss": (201_088, 2880, 2880, 36, 64, 8, 64, 131_072),
    "granite": (32_000, 4096, 11_008, 32, 32, None, None, 2048),
    "granitemoe": (32_000, 4096, 11_008, 32, 32, None, None, 2048),
    "granitemoehybrid": (32_000, 4096, 11_008, 32, 32, None, None, 2048),
    "granitemoeshared": (32_000, 4096, 11_008, 32, 32, None, None, 2048),
    "helium": (48_000, 2560, 7040, 24, 20, 20, 128, 4096),
    "hunyuan_v1_dense": (290_943, 4096, 11_008, 32, 32, None, None, 2048),
    "hunyuan_v1_moe": (290_943, 4096, 11_008, 32, 32, None, None, 2048),
    "internlm3": (128_512, 4096, 10_240, 48, 32, 2, 128, 32_768),
    "jais2": (150_272, 3328, 26_624, 32, 26, None, None, 8192),
    "lara_mini": (151_936, 1024, None, 34, 16, 4, 128, 131_072),
    "lfm2": (65_536, 2560, 12_288, 32, 32, 8, None, 128_000),
    "lfm2_moe": (65_536, 2048, 7168, 32, 32, 8, None, 128_000),
    "lfm3": (128_000, 2048, 7680, 24, 16, 4, 128, 128_000),
    "llama": (32_000, 4096, 11_008, 32, 32, None, None, 2048),
    "llama4_text": (202_048, 5120, 8192, 48, 40, 8, 128, 131_072),
    "minicpm3": (73_448, 2560, 6400, 62, 40, 40, None, 32_768),
    "minimax_m2": (200_064, 3072, 1536, 62, 48, 8, 128, 196_608),
    "ministral": (32_000, 4096, 14_336, 32, 32, 8, None, 131_072),
    "ministral3": (131_072, 4096, 14_336, 34, 32, 8, 128, 262_144),
    "mistral": (32_000, 4096, 14_336, 32, 32, 8, None, 131_072),
    "mixtral": (32_000, 4096, 14_336, 32, 32, 8, None, 131_072),
    "nemotron": (256_000, 6144, 24_576, 32, 48, None, None, 4096),
    "nemotron_h": (131_072, 4096, 21_504, None, 32, 8, 128, 4096),
    "olmo": (50_304, 4096, 11_008, 32, 32, None, None, 2048),
    "olmo2": (50_304, 4096, 11_008, 32, 32, None, None, 2048),
    "olmo3": (50_304, 4096, 11_008, 32, 32, None, None, 2048),
    "olmoe": (50_304, 2048, 2048, 16, 16, None, None, 4096),
    "opt": (50_272, 768, None, 12, 12, None, None, 2048),
    "phi": (51_200, 2048, 8192, 24, 32, None, None, 2048),
    "phi3": (32_064, 3072, 8192, 32, 32, None, None, 4096),
    "qwen2": (151_936, 4096, 22_016, 32, 32, 32, None, 32_768),
    "qwen2_5_vl_text": (152_064, 8192, 29_568, 80, 64, 8, None, 32_768),
    "qwen2_moe": (151_936, 2048, 5632, 24, 16, 16, None, 32_768),
    "qwen2_vl_text": (152_064, 8192, 29_568, 80, 64, 8, None, 32_768),
    "qwen3": (151_936, 4096, 22_016, 32, 32, 32, 128, 32_768),
    "qwen3_5_moe_text": (248_320, 2048, None, 40, 16, 2, 256, 32_768),
    "qwen3_5_text": (248_320, 4096, 12_288, 32, 16, 4, 256, 32_768),
    "qwen3_moe": (151_936, 2048, 6144, 24, 32, 4, None, 32_768),
    "qwen3_next": (151_936, 2048, 5632, 48, 16, 2, 256, 32_768),
    "qwen3_vl_moe_text": (151_936, 2048, 5632, 24, 16, 16, None, 128_000),
    "qwen3_vl_text": (151_936, 4096, 22_016, 32, 32, 32, 128, 128_000),
    "sarvam_moe": (262_144, 4096, 8192, 19, 64, 4, 64, 131_072),
    "seed_oss": (155_136, 4096, 27_648, 64, 80, 8, 128, 524_288),
    "smollm3": (128_256, 2048, 11_008, 36, 16, 4, None, 32_768),
    "solar_open": (196_608, 4096, None, 48, 64, 8, 128, 131_072),
    "stablelm": (50_304, 2560, 6912, 32, 32, 32, None, 4096),
    "starcoder2": (49_152, 3072, 12_288, 30, 24, 2, None, 4096),
    "vaultgemma": (256_000, 2304, 9216, 26, 8, 4, 256, 8192),
}


def with_default_sizes(config: Config, model_type: str) -> Config:
    """The same config, in which a size that is absent is that of its class; null stays: it follows from the others."""
    defaults = _DEFAULTS.get(model_type) or _DEFAULTS.get(f"{model_type}{_TEXT}", ())
    return config.with_defaults({key: value for key, value in zip(SIZES, defaults, strict=False) if value is not None})
