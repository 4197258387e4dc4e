"""What sentence-transformers' files say is read, or refused by the file and the value; older configs are understood."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import convert
from embedllm.export.checkpoints.sentence_transformers import SentenceFolder, read_sentence_folder
from embedllm.export.encoders import describe_encoder, task_of
from embedllm.package.architecture.encoder import NamedPrompt
from embedllm.package.package import open_package
from tests.support.encoder_folders import CONFIG, write_embedder

DENSE = {"in_features": 32, "out_features": 8, "activation_function": "torch.nn.modules.linear.Identity"}
Change = Callable[[Path], None]


def write(name: str, data: object) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(data))

    return change


def modules(*kinds: str) -> Change:
    """By their kinds, each in a folder of that name but for the transformer."""
    entries = [{"type": f"sentence_transformers.models.{kind}", "path": "" if kind == "Transformer" else kind}
               for kind in kinds]  # fmt: skip
    return write("modules.json", entries)


GEMMA2 = {"model_type": "embedding_gemma2_text", "num_hidden_layers": 6, "vocab_size": 67}


def test_a_family_s_own_matrix_stays_in_front_of_a_folder_s() -> None:
    """EmbeddingGemma 2 projects the vectors of tokens, which of a mean is the same behind it, of a maximum not."""
    encoder = describe_encoder(GEMMA2, SentenceFolder(pooling="mean", normalize=True), "embed").encoder
    assert encoder is not None
    assert [(step.linear.rows, step.linear.columns) for step in encoder.dense] == [(768, 512)]
    with pytest.raises(UnsupportedModel, match="pools by 'max' what 'embedding_projection' gives"):
        describe_encoder(GEMMA2, SentenceFolder(pooling="max"), "embed")


def test_sizes_that_an_embedding_gemma_2_leaves_out_are_those_of_transformers() -> None:
    decoder = describe_encoder(GEMMA2, None, "embed")
    sizes = [(each.head_dim, each.kv_heads, each.window) for each in decoder.attentions]
    assert sizes == [(256, 2, 513)] * 5 + [(512, 1, None)]
    assert decoder.per_layer_embedding is not None
    assert decoder.per_layer_embedding.size == 512
    assert (decoder.context, decoder.rope.base) == (262_144, 1e6)


def test_a_folder_without_modules_says_nothing(tmp_path: Path) -> None:
    assert read_sentence_folder(tmp_path) is None


def test_all_of_a_folder_is_read(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "checkpoint")
    prompts = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}
    write("config_sentence_transformers.json", prompts)(folder)
    assert read_sentence_folder(folder) == SentenceFolder(
        pooling="mean",
        normalize=True,
        tokens=40,
        prompts=(NamedPrompt(name="query", text="q: "), NamedPrompt(name="document", text="")),
        prompt="query",
    )


def test_newer_names_of_poolings_and_modules_are_read(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "checkpoint")
    write("1_Pooling/config.json", {"pooling_mode": "lasttoken"})(folder)
    kinds = {"": "sentence_transformers.base.modules.transformer.Transformer",
             "1_Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"}  # fmt: skip
    write("modules.json", [{"type": kind, "path": path} for path, kind in kinds.items()])(folder)
    found = read_sentence_folder(folder)
    assert found is not None
    assert (found.pooling, found.normalize) == ("lasttoken", False)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (write("modules.json", {}), ExportError, "is no list of modules"),
        (write("modules.json", [{"type": 3}]), ExportError, "has the module"),
        (write("modules.json", [{"type": "Pooling", "path": "../x"}]), ExportError, "inside the folder"),
        (modules("Pooling"), UnsupportedModel, "module 0 .* is 'Pooling'; expected 'Transformer' first"),
        (modules("Transformer", "WordWeights"), UnsupportedModel, "module 1 .* is 'WordWeights'; expected Transformer"),
        (modules("Transformer", "Normalize"), UnsupportedModel, "module 1 .* is 'Normalize'"),
        (write("1_Pooling/config.json", {}), UnsupportedModel, r"has 0 ways of pooling"),
        (
            write("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}),
            UnsupportedModel,
            r"has 2 ways of pooling \(cls, max\)",
        ),
        (write("1_Pooling/config.json", {"pooling_mode": "odd"}), UnsupportedModel, "pooling_mode .* is 'odd'; known"),
        (write("1_Pooling/config.json", {"include_prompt": False}), UnsupportedModel, "leaves the prompt's tokens out"),
        (write("sentence_bert_config.json", {"do_lower_case": True}), UnsupportedModel, "has do_lower_case"),
        (write("config_sentence_transformers.json", {"prompts": {"a": 1}}), ExportError, "'prompts' of"),
        (
            write("config_sentence_transformers.json", {"default_prompt_name": "a"}),
            ExportError,
            "'default_prompt_name'",
        ),
    ],
)
def test_what_is_not_described_is_refused(tmp_path: Path, change: Change, error: type[Exception], said: str) -> None:
    folder = write_embedder(tmp_path / "checkpoint")
    change(folder)
    with pytest.raises(error, match=said):
        convert(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({**DENSE, "in_features": 16}, ExportError, "'Dense' takes vectors of 16 values; what is before it gives 32"),
        ({**DENSE, "activation_function": "torch.Odd"}, UnsupportedModel, "activation of 'Dense' is 'torch.Odd'"),
        ({**DENSE, "module_output_name": "token_embeddings"}, UnsupportedModel, "changes what is no vector of a text"),
        (DENSE, ExportError, "no safetensors in .*Dense"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(
    tmp_path: Path, config: dict[str, object], error: type[Exception], said: str
) -> None:
    folder = write_embedder(tmp_path / "checkpoint")
    for change in (modules("Transformer", "Pooling", "Dense"), write("Dense/config.json", config),
                   write("Pooling/config.json", {"pooling_mode": "cls"})):  # fmt: skip
        change(folder)
    with pytest.raises(error, match=said):
        convert(folder, tmp_path / "out")


def test_what_a_checkpoint_is_for_follows_from_its_files() -> None:
    folder = SentenceFolder(pooling="mean")
    assert task_of(CONFIG, None) == task_of(CONFIG, folder) == "embed"
    assert task_of({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, None) == "chat"
    assert task_of({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, folder) == "embed"
    assert task_of({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, folder) == "rerank"


def test_a_model_that_is_a_classifier_can_be_told_to_embed(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "checkpoint", values={"architectures": ["BertForSequenceClassification"]})
    encoder = open_package(convert(folder, tmp_path / "out", task="embed")).encoder
    assert encoder is not None
    assert not encoder.score_activation


def test_published_modernberts_have_the_rotations_of_their_older_configs() -> None:
    """As answerdotai/ModernBERT-base has them: no rope_parameters, no layer_types."""
    config: dict[str, object] = {
        "model_type": "modernbert", "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152,
        "num_hidden_layers": 4, "num_attention_heads": 12, "max_position_embeddings": 8192, "local_attention": 128,
        "global_attn_every_n_layers": 3, "global_rope_theta": 80_000.0, "local_rope_theta": 20_000.0,
    }  # fmt: skip
    decoder = describe_encoder(config, None, "embed")
    assert [rope.base for rope in decoder.ropes] == [80_000, 20_000]
    assert [attention.rope for attention in decoder.attentions] == [0, 1, 1, 0]
    assert [attention.window for attention in decoder.attentions] == [None, 65, 65, None]
    del config["global_rope_theta"], config["local_rope_theta"]
    assert [rope.base for rope in describe_encoder(config, None, "embed").ropes] == [160_000, 10_000]
