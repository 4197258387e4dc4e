"""genai_config.json, so that onnxruntime-genai loads the same folder: as a text decoder, or as a model that sees.

Its parser refuses keys that it does not know, so nothing of ours is in there. Keys: onnxruntime-genai 0.18.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.writing.genai_kinds import GenaiKind
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import (
    FLOAT32,
    GENAI_DECODER,
    GENAI_EMBEDDING,
    INPUTS_EMBEDS,
    POSITION_IDS,
    GraphVariant,
)
from embedllm.package.recurrent_state import mixer_states, recurrent_mixer

FILE = "genai_config.json"
_LONGEST = 4096  # tokens: it takes KV for max_length at once, which a full context would make gigabytes


def runs_text(decoder: Decoder, *, keeps_latent: bool) -> bool:
    """Whether onnxruntime-genai runs the default graph: none for whole texts, and none whose KV holds latents.

    Of recurrent layers it takes the state of a convolution and a matrix together, so no short convolutions (LFM2).
    """
    mixers = [mixer for layer in decoder.layers if (mixer := recurrent_mixer(layer)) is not None]
    return decoder.encoder is None and not keeps_latent and all("recurrent" in mixer_states(mixer) for mixer in mixers)


def genai_config(decoder: Decoder, tokens: Mapping[str, object], variant: GraphVariant = FLOAT32) -> dict[str, object]:
    """The configuration for a folder, which has a graph of that variant.

    tokens: bos, pad, stop, as in the manifest.
    """
    first = decoder.attentions[0]
    stop = tokens["stop"]
    assert isinstance(stop, list)
    ids = {"bos_token_id": tokens["bos"], "eos_token_id": stop or None, "pad_token_id": tokens["pad"]}
    if ids["pad_token_id"] is None and stop:
        ids["pad_token_id"] = stop[0]
    past, present = {}, {}
    for kind in ("conv", "recurrent") if decoder.is_recurrent else ():
        names = variant.states(kind, "%d")
        past[f"past_{kind}_names"], present[f"present_{kind}_names"] = names
    return {
        "model": {
            "type": "decoder",
            "context_length": decoder.context,
            "vocab_size": decoder.vocabulary,
            **{key: value for key, value in ids.items() if value is not None},
            "decoder": {
                "filename": variant.file,
                "hidden_size": decoder.hidden,
                "num_attention_heads": first.heads,
                "num_key_value_heads": first.kv_heads,
                "head_size": first.head_dim,
                "num_hidden_layers": len(decoder.kv_attentions),
                "session_options": {"provider_options": []},
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                    **past,
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                    **present,
                },
            },
        },
        "search": {"max_length": min(decoder.context, _LONGEST), "past_present_share_buffer": True},
    }


def genai_images_config(
    decoder: Decoder, tokens: Mapping[str, object], kind: GenaiKind, ids: Mapping[str, int], processor_file: str
) -> dict[str, object]:
    """The configuration for a folder that has the three graphs of a model that takes images.

    ids: of special tokens, by the keys of a configuration. processor_file: with the steps of the image processor.
    """
    config = genai_config(decoder, tokens, GENAI_DECODER)
    model = config["model"]
    assert isinstance(model, dict)
    positions = {POSITION_IDS: POSITION_IDS} if GENAI_DECODER.computes_mrope(decoder) else {}
    model["decoder"]["inputs"] |= {INPUTS_EMBEDS: INPUTS_EMBEDS, **positions}
    # of the rows that pass between the graphs, for which it allocates: with the features of DeepStack behind them
    model["decoder"]["hidden_size"] = decoder.image_width
    vision: dict[str, object] = {
        "filename": kind.vision.file,
        "config_filename": processor_file,
        "inputs": {name: name for name in kind.vision_inputs},
        "outputs": {"image_features": "image_features"},
    }
    if isinstance(decoder.vision, DynamicVision):
        vision |= {"patch_size": decoder.vision.patch_size, "spatial_merge_size": decoder.vision.merge_size}
    model |= {
        "type": kind.name,
        **ids,
        "embedding": {
            "filename": GENAI_EMBEDDING.file,
            "inputs": {name: name for name in ("input_ids", "image_features")},
            "outputs": {INPUTS_EMBEDS: INPUTS_EMBEDS},
        },
        "vision": vision,
    }
    return config
