"""Decoder + layout -> a stateful OpenVINO model of a few hundred kilobytes whose weights lie in weights.safetensors.

Inputs: input_ids, attention_mask, position_ids [B, T] i64 (the mask: [B, past + T]) and beam_idx [B] i32, the four that
openvino-genai expects. Output: logits [B, T, V] of every position; backends/openvino/logits_slice.py slices to the
last one before the last layer, as openvino-genai does at the head. Keys and values are variables [B, kv heads, T, D].
"""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.layout import CONSTANTS, LATENT_CONSTANTS, Layout
from embedllm.export.openvino.attention import Shared, rotations, temperatures
from embedllm.export.openvino.decoder_parts import DecoderParts
from embedllm.export.openvino.ir import Ir
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.packing import Packing

FILE, LATENT_FILE = "openvino_model.xml", "openvino_model.latent.xml"


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing], *, is_latent: bool = False) -> str:
    """The model of a decoder, as the text of an IR file.

    packing: by the name of the matrix. is_latent: the KV holds latents, where has_latents() says that it can.
    """
    ir = Ir(layout, LATENT_CONSTANTS if is_latent else CONSTANTS)
    return _TextDecoder(ir, decoder, packing, is_latent=is_latent).model().xml(decoder.model_type)


def constants(decoder: Decoder, packing: Mapping[str, Packing], *, is_latent: bool = False) -> bytes:
    """The small constants that the model needs, to be stored as one entry of the weights file."""
    return _TextDecoder(Ir(None), decoder, packing, is_latent=is_latent).model().pool


class _TextDecoder(DecoderParts):
    """A decoder that reads tokens."""

    def model(self) -> Ir:
        ir, decoder = self.ir, self.decoder
        ids, mask, positions = (
            ir.parameter(name, "i64", 2) for name in ("input_ids", "attention_mask", "position_ids")
        )
        beams = ir.parameter("beam_idx", "i32", 1)
        batch, length = ir.size(ids, 0, "batch"), ir.size(ids, 1, "length")
        rope_tables = rotations(ir, decoder, positions)
        masks, in_chunks = self.masks(mask, positions, length)
        scales = temperatures(ir, decoder, positions)
        shared = Shared(batch=batch, beams=beams, rope_tables=rope_tables, masks=masks, chunk_masks=in_chunks,
                        temperatures=scales)  # fmt: skip
        x = self.embedded(ids, positions)
        per_layer_inputs = None
        if (inputs := decoder.per_layer_embedding) is not None:
            per_layer_inputs = self.per_layer_inputs(inputs, self.per_layer_rows(inputs, ids), x)
        self.write(x, shared, per_layer_inputs)
        return ir
