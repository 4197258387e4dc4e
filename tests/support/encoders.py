"""Every embedding and reranker family as a tiny model of transformers' own classes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HIDDEN, VOCABULARY, WINDOW = 64, 67, 9
PAD = 1  # the token whose number roberta's positions depend on; no text has it
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# of one token and of more than a window to both sides has
TEXTS = ("a", "the quick brown fox jumps over the lazy dog", "zebra crossing", "one two three four five six seven",
         "padded", "she sells sea shells by the sea shore and he does not")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model."""

    family: str  # its model_type here
    model_class: str  # in transformers
    config_class: str
    verified: str  # what of the family the case has in it, in a few words
    values: Mapping[str, object] = field(default_factory=dict)  # of the configuration, in place of those of BASE
    # of the folder's sentence-transformers files: how it pools, the sizes of matrices, whether vectors have length 1
    pooling: str = ""  # empty: there are no such files
    denses: tuple[int, ...] = ()
    normalised: bool = False
    said: Mapping[str, object] = field(default_factory=dict)  # more in config.json

    @property
    def scores(self) -> bool:
        return self.model_class.endswith("Classification")


BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 130, "initializer_range": 0.2, "pad_token_id": PAD,
    "bos_token_id": None, "eos_token_id": None, "cls_token_id": 0, "sep_token_id": 2,
}  # fmt: skip
_DISTIL = {"dim": HIDDEN, "hidden_dim": 96, "n_layers": 3, "n_heads": 4, "hidden_size": ..., "intermediate_size": ...,
           "num_hidden_layers": ..., "num_attention_heads": ...}  # fmt: skip
_MODERN = {"local_attention": 2 * (WINDOW - 1), "global_attn_every_n_layers": 2, "initializer_cutoff_factor": 5.0}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
_GEMMA = {**_GROUPED, "sliding_window": 2 * (WINDOW - 1), "sliding_window_pattern": 2, "query_pre_attn_scalar": 24}
_GEMMA2 = {**_GROUPED, "sliding_window": WINDOW - 1, "sliding_window_pattern": 2, "global_head_dim": 32,
           "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 24, "embedding_dim": 48,
           "num_hidden_layers": 4, "rms_norm_eps": 1e-3}  # fmt: skip
_DEBERTA = {"relative_attention": True, "share_att_key": True, "pos_att_type": "p2c|c2p", "type_vocab_size": 0,
            "position_biased_input": False, "max_relative_positions": -1}  # fmt: skip
_JINA = {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu",
         "layer_norm_eps": 1e-12, "type_vocab_size": 2}  # fmt: skip
_NOMIC_MOE = {
    "model_type": "nomic_bert", "n_embd": HIDDEN, "n_head": 4, "n_inner": 96, "n_layer": 4, "n_positions": 130,
    "layer_norm_epsilon": 1e-5, "rotary_emb_base": 10_000, "rotary_emb_fraction": 1.0, "activation_function": "gelu",
    "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "type_vocab_size": 1, "moe_every_n_layers": 2,
    "num_experts": 4, "moe_top_k": 2, "expert_choice_router": False, "moe_normalize_expert_weights": False,
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                     "max_position_embeddings"), ...),
}  # fmt: skip
_ONE = {"num_labels": 1}


def _case(family: str, name: str, verified: str, values: Mapping[str, object] | None = None, *, pooling: str = "",
          denses: tuple[int, ...] = (), normalised: bool = False) -> Case:  # fmt: skip
    return Case(family=family, model_class=f"{name}Model", config_class=f"{name}Config", verified=verified,
                values=values or {}, pooling=pooling, denses=denses, normalised=normalised)  # fmt: skip


def _scored(
    family: str, name: str, verified: str, values: Mapping[str, object], said: Mapping[str, object] | None = None
) -> Case:
    return Case(family=family, model_class=f"{name}ForSequenceClassification", config_class=f"{name}Config",
                verified=verified, values={**values, **_ONE}, said=said or {})  # fmt: skip


ENCODERS: dict[str, Case] = {
    "bert": _case("bert", "Bert", "mean pooling"),
    "bert-cls": _case("bert", "Bert", "CLS pooling, a dense layer, L2-normalised", pooling="cls", denses=(24,),
                      normalised=True, values={"hidden_act": "gelu_new"}),
    "bert-scored": _scored("bert", "Bert", "scores of pairs, token type embeddings", {}),
    "roberta": _case("roberta", "Roberta", "max pooling", values={"type_vocab_size": 1}, pooling="max"),
    "roberta-scored": _scored("roberta", "Roberta", "scores of pairs", {"type_vocab_size": 1}),
    "xlm-roberta": _case("xlm-roberta", "XLMRoberta", "CLS pooling, L2-normalised", values={"type_vocab_size": 1},
                         pooling="cls", normalised=True),
    "xlm-roberta-scored": _scored("xlm-roberta", "XLMRoberta", "scores of pairs as they are", {"type_vocab_size": 1},
                                  said={"sentence_transformers": {"activation_fn": IDENTITY}}),
    "distilbert": _case("distilbert", "DistilBert", "weighted mean pooling", values=_DISTIL, pooling="weightedmean"),
    "mpnet": _case("mpnet", "MPNet", "mean pooling, L2-normalised, relative position bias", pooling="mean",
                   normalised=True),
    "deberta-v2": _case("deberta-v2", "DebertaV2", "CLS pooling, disentangled attention in buckets", pooling="cls",
                        values={**_DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}),
    "deberta-v2-each": _case("deberta-v2", "DebertaV2", "each distance by itself, token type embeddings",
                             values={**_DEBERTA, "max_relative_positions": 40, "type_vocab_size": 2}),
    "deberta-v2-scored": _scored("deberta-v2", "DebertaV2", "scores of pairs",
                                 {**_DEBERTA, "position_buckets": 16, "norm_rel_ebd": "layer_norm"}),
    "modernbert": _case("modernbert", "ModernBert", "windows, both RoPE bases", values=_MODERN),
    "modernbert-biased": _case("modernbert", "ModernBert", "all biases, mean over sqrt of the length",
                               pooling="mean_sqrt_len",
                               values={**_MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True}),
    "modernbert-scored": _scored("modernbert", "ModernBert", "scores of pairs by mean pooling",
                                 {**_MODERN, "classifier_pooling": "mean", "classifier_bias": True}),
    "qwen3": _case("qwen3", "Qwen3", "last-token pooling, L2-normalised, grouped-query attention", values=_GROUPED,
                   pooling="lasttoken",
                   normalised=True),
    "qwen3-both": _case("qwen3", "Qwen3", "attention in both directions ('is_causal' false)", pooling="mean",
                        values={**_GROUPED, "is_causal": False}),
    "nomic_bert": _case("nomic_bert", "NomicBert", "mean pooling, token type embeddings, RoPE"),
    "nomic_bert-moe": dataclasses.replace(
        _case("nomic_bert", "NomicMoe", "mixture of experts on every other layer", values=_NOMIC_MOE),
        config_class="EncoderConfig"),
    "jina_bert_v2": dataclasses.replace(
        _case("jina_bert_v2", "JinaBert", "mean pooling, ALiBi, gated MLP", values=_JINA, pooling="mean"),
        config_class="EncoderConfig"),
    "jina_bert_v2-scored": dataclasses.replace(
        _scored("jina_bert_v2", "JinaBert", "scores of pairs, heads that are no power of two",
                {**_JINA, "feed_forward_type": "reglu", "hidden_size": 96, "num_attention_heads": 6}),
        config_class="EncoderConfig"),
    "jina_embeddings_v3": _case("jina_embeddings_v3", "JinaEmbeddingsV3", "mean pooling, L2-normalised, RoPE",
                                pooling="mean", normalised=True),
    "eurobert": _case("eurobert", "EuroBert", "last-token pooling, grouped-query attention", pooling="lasttoken",
                      values=_GROUPED),
    "gemma3_text": _case("gemma3_text", "Gemma3Text", "bidirectional windows, two matrices", pooling="mean",
                         denses=(128, 48), normalised=True, values={**_GEMMA, "use_bidirectional_attention": True}),
    "embedding_gemma2_text": _case("embedding_gemma2_text", "EmbeddingGemma2Text", "bidirectional windows, larger "
                                   "heads in global layers, per-layer embeddings (PLE) without a table, a projection "
                                   "and two matrices", pooling="mean", denses=(128, 48), normalised=True,
                                   values={**_GEMMA2, "embedding_dim": HIDDEN}),  # as the matrices are made for
    "embedding_gemma2": _case("embedding_gemma2", "EmbeddingGemma2", "the text encoder of a multimodal checkpoint",
                              values={**dict.fromkeys(BASE, ...), "vision_config": None, "audio_config": None,
                                      "text_config": {**BASE, **_GEMMA2}}),
}  # fmt: skip


def make_checkpoint(folder: Path, case: Case, *, seed: int = 0) -> PreTrainedModel:
    """Writes a case's checkpoint; returns transformers' model of it, on float32. Norms and biases are moved."""
    import torch
    import transformers

    from tests.support.encoder_models import CLASSES

    def found(name: str) -> Any:  # noqa: ANN401  # a class of transformers', or one that it has not
        return CLASSES.get(name) or getattr(transformers, name)

    torch.manual_seed(seed)
    values = {key: value for key, value in {**BASE, **case.values}.items() if value is not ...}
    config = found(case.config_class)(**values, attn_implementation="eager")
    model = found(case.model_class)(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() == 1 or parameter.std() == 0:
                parameter += 0.3 * torch.randn(parameter.shape)
            parameter.copy_(parameter.bfloat16())  # as published ones are: float16 holds such a weight exactly
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    if case.said:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **case.said}))
    write_word_pieces(folder)
    if case.pooling:
        write_sentence_files(folder, case, seed=seed)
    return model


def write_word_pieces(folder: Path) -> None:
    """A tokenizer.json like BERT's: every letter is a token, and another one inside of a word."""
    pieces = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "pad_token": "[PAD]"}))


def write_sentence_files(folder: Path, case: Case, *, seed: int = 0) -> None:
    """What sentence-transformers keeps beside a checkpoint."""
    kinds = ["Transformer", "Pooling", *("Dense" for _ in case.denses), *(["Normalize"] if case.normalised else [])]
    places = ["" if kind == "Transformer" else f"{index}_{kind}" for index, kind in enumerate(kinds)]
    listed = [{"idx": index, "name": str(index), "path": place, "type": f"sentence_transformers.models.{kind}"}
              for index, (kind, place) in enumerate(zip(kinds, places, strict=True))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    mode = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "weightedmean": "weightedmean_tokens",
            "mean_sqrt_len": "mean_sqrt_len_tokens"}.get(case.pooling, case.pooling)  # fmt: skip
    _write(folder / places[1], {"word_embedding_dimension": HIDDEN, f"pooling_mode_{mode}": True})
    random, columns = np.random.default_rng(seed), HIDDEN
    for index, rows in enumerate(case.denses):
        activation = IDENTITY if index else TANH
        said = {"in_features": columns, "out_features": rows, "bias": not index, "activation_function": activation}
        _write(folder / places[2 + index], said)
        tensors: dict[str, Any] = {"linear.weight": random.standard_normal((rows, columns)).astype(np.float32) / 8}
        if not index:
            tensors["linear.bias"] = random.standard_normal(rows).astype(np.float32)
        save_file(tensors, folder / places[2 + index] / "model.safetensors")
        columns = rows


def zero_experts_bias(model: PreTrainedModel) -> None:
    """GGUF files have no such bias."""
    for name, values in model.named_parameters():
        if name.endswith("experts.bias"):
            values.data.zero_()


def _write(folder: Path, config: Mapping[str, object]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
