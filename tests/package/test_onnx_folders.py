"""Folders made by others: by hand here; test_onnx_folders_peer.py has those that the others wrote themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import quantize_dynamic

import embedllm
from embedllm.backends.base import Device
from embedllm.backends.devices import registry
from embedllm.backends.devices.drivers import find_family
from embedllm.backends.devices.support import external_graph_unsupported
from embedllm.backends.gpu.external_placement import on_directml
from embedllm.backends.ort.engine import devices
from embedllm.backends.ort.external_graph.engine import ExternalGraphEngine, ExternalGraphSession
from embedllm.backends.ort.external_graph.placement import on_host
from embedllm.errors import ContextFull, DeviceUnavailable, PackageError
from embedllm.export import Recipe
from embedllm.loading.resolve import package_folder
from embedllm.package.external import onnx_folder
from embedllm.package.external.known_defects import faults
from embedllm.package.gpu_graph_choice import on_gpu
from embedllm.package.onnx_reader import GraphSummary, Node
from embedllm.package.package import MANIFEST, open_package
from tests.cli.test_commands import embed
from tests.support.external_folders import (
    Edit,
    genai,
    stripped,
    transformers_js,
    with_branch,
    with_few_logits,
    with_half_kv,
    with_last_logits,
    with_narrow_masks,
    without_positions,
)
from tests.support.traced_models import CONTEXT, HEADS, SIZE, VOCABULARY, expected, weights

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 30).tolist()
GREEDY = embedllm.Sampling(temperature=0)
CHANGES: dict[str, Sequence[Callable[[Path], None]]] = {
    "as optimum writes it": (),
    "without positions": (without_positions,),
    "a merged decoder": (with_branch,),
    "few logits": (with_few_logits,),
    "the last logits": (with_last_logits,),
    "32-bit masks": (with_narrow_masks,),
    "16-bit KV": (with_half_kv,),
    "all of it": (with_branch, with_half_kv, with_few_logits, without_positions),
}


def opened(folder: Path) -> ExternalGraphSession:
    package = open_package(folder)
    return ExternalGraphEngine(package, package.graphs[0], on_host(devices()[0])).open()


def greedy(tokens: Sequence[int], count: int) -> tuple[int, ...]:
    """What the formula goes on with."""
    found = list(tokens)
    for _ in range(count):
        found.append(int(expected(weights(), found)[-1].argmax()))
    return tuple(found[len(tokens) :])


def test_a_reply_ends_where_a_turn_does_that_the_configuration_does_not_name(tmp_path: Path) -> None:
    """As in our own exports: at the tokenizer's EOS token, <|im_end|>, and at <|endoftext|>."""
    folder = transformers_js(tmp_path / "model")
    assert open_package(folder).stop_tokens == (5,)
    with embedllm.load(folder) as model:
        assert model.package.stop_tokens == (5, 2, 0)
        model.package.add_stop_tokens([VOCABULARY])  # of which it gives no logits
        assert model.package.stop_tokens == (5, 2, 0)
    assert json.loads(embed("inspect", str(folder), "--json").stdout)["stop_tokens"] == [5, 2, 0]


# What a graph is fed


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_graphs_of_other_exporters_give_the_logits_of_their_formula(
    tmp_path: Path, changes: Sequence[Callable[[Path], None]]
) -> None:
    folder = transformers_js(tmp_path / "model")
    for change in changes:
        change(folder / "onnx" / "model.onnx")
    session, right = opened(folder), expected(weights(), TOKENS)
    atol = 0.05 if with_half_kv in changes else 1e-4
    np.testing.assert_allclose(session.feed_all(TOKENS), right, atol=atol)
    session.rewind(7)
    np.testing.assert_allclose(session.feed(TOKENS[7:20]).top(1).tokens, [right[19].argmax()])
    np.testing.assert_allclose(session.feed_all(TOKENS[20:]), right[20:], atol=atol)
    state = session.export_state(0, 25)
    session.rewind(0)
    session.import_state(state)
    assert session.position == 25
    np.testing.assert_allclose(session.feed_all(TOKENS[25:]), right[25:], atol=atol)


def test_the_whole_library_runs_it_and_writes_nothing_into_it(tmp_path: Path) -> None:
    folder = transformers_js(tmp_path / "model")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with embedllm.load(folder) as model:
        assert (model.device.name, model.name, model.context) == ("cpu", "model", CONTEXT)
        reply = model.generate("list files", GREEDY, max_tokens=6, stop_tokens=())
        prompt = model.tokenizer.encode("list files", special=True)
        assert reply.tokens == greedy(prompt, 6)
        pieces = list(model.stream(prompt, GREEDY, max_tokens=6, stop_tokens=()))
        assert "".join(piece.text for piece in pieces) == reply.text
        assert model.package.stop_tokens == (5, 2, 0)
        chat = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with embedllm.load(folder, chat_template=chat) as model:
        said = model.chat([{"role": "user", "content": "list files"}], GREEDY, max_tokens=6, stop_tokens=())
        assert said.tokens == reply.tokens
        with pytest.raises(ContextFull):
            model.generate([1] * CONTEXT, max_tokens=1)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_prompts_share_what_they_have_in_common_and_guesses_change_nothing(tmp_path: Path) -> None:
    with embedllm.load(transformers_js(tmp_path / "model")) as model:
        plain = model.generate(TOKENS[:20], GREEDY, max_tokens=8, stop_tokens=())
        guessed = model.generate(TOKENS[:20], GREEDY, max_tokens=8, stop_tokens=(), speculate="lookup")
        shorter = model.generate(TOKENS[:12], GREEDY, max_tokens=8, stop_tokens=())
    assert plain.tokens == guessed.tokens == greedy(TOKENS[:20], 8)
    assert shorter.tokens == greedy(TOKENS[:12], 8)
    assert guessed.statistics.cached_tokens == 19


def test_a_conversation_is_saved_and_goes_on(tmp_path: Path) -> None:
    folder, chat = transformers_js(tmp_path / "model"), "{% for m in messages %}{{ m.content }} {% endfor %}"
    said = []
    with embedllm.load(folder, chat_template=chat) as model:
        with embedllm.Conversation(model) as conversation:
            conversation.say("list", GREEDY, max_tokens=4, stop_tokens=())
            conversation.save(tmp_path / "saved")
            said.append(conversation.say("files", GREEDY, max_tokens=4, stop_tokens=()))
        with embedllm.Conversation.open(model, tmp_path / "saved") as conversation:
            said.append(conversation.say("files", GREEDY, max_tokens=4, stop_tokens=()))
    assert said[0].tokens == said[1].tokens


def test_a_graph_that_is_wrong_for_pieces_is_fed_token_by_token_behind_others(tmp_path: Path) -> None:
    session = opened(transformers_js(tmp_path / "model", mask="whole"))
    right = expected(weights(), TOKENS)
    session.feed(TOKENS[:9])
    np.testing.assert_allclose(session.feed_all(TOKENS[9:]), right[9:], atol=1e-4)


def test_a_graph_that_rounds_what_is_fed_at_once_is_fed_in_pieces(tmp_path: Path) -> None:
    folder = transformers_js(tmp_path / "model")
    path = folder / "onnx" / "model.onnx"
    quantize_dynamic(path, path.with_name("model_quantized.onnx"))
    package = open_package(folder)
    assert package.graphs[0].file == "onnx/model_quantized.onnx"
    assert package.external is not None
    assert package.external.names.rounds
    engine, right = ExternalGraphEngine(package, package.graphs[0], on_host(devices()[0])), expected(weights(), TOKENS)
    assert engine.external_graph.in_pieces
    found = engine.open().feed_all(TOKENS)
    assert 0.99 < np.corrcoef(found.ravel(), right.ravel())[0, 1] < 1


def test_a_graph_that_is_wrong_behind_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="gives other logits for a prompt that is fed at once"):
        embedllm.load(transformers_js(tmp_path / "model", mask="wrong"), device="cpu")


def test_devices_that_do_not_run_it_say_which_does(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable, match=r"transformers\.js or optimum wrote .*use the device 'cpu'"):
        embedllm.load(transformers_js(tmp_path / "model"), device="reference")


def test_a_gpu_does_not_promise_exact_numbers_of_it(tmp_path: Path) -> None:
    package = open_package(transformers_js(tmp_path / "model"))
    for name in ("cuda", "webgpu"):
        driver = find_family(name)
        assert driver is not None
        assert external_graph_unsupported(package, driver, exact=False, kv=None) is None
        assert external_graph_unsupported(package, driver, exact=True, kv=None) is not None


def lacks(folder: Path) -> dict[str, str]:
    """Why GPUs do not run a folder; nothing of those that do."""
    package, found = open_package(folder), {}
    for name in ("cuda", "webgpu", "directml"):
        driver = find_family(name)
        assert driver is not None
        if (lack := external_graph_unsupported(package, driver, exact=False, kv=None)) is not None:
            found[name] = lack[0]
    return found


@pytest.mark.parametrize(("groups", "bits", "wrong"), [(2, 4, []), (3, 4, ["cuda"]), (3, 8, ["directml"])])
def test_a_gpu_does_not_get_odd_rows_of_zero_points_that_it_misreads(
    tiny_package: Callable[..., Path], tmp_path: Path, groups: int, bits: int, wrong: list[str]
) -> None:
    sizes = {"hidden_size": 32 * groups, "intermediate_size": 64, "num_attention_heads": 3, "num_key_value_heads": 1}
    folder = stripped(tiny_package("llama", Recipe(bits=bits, symmetric=False), **sizes), tmp_path / "model")
    path = folder / "model.onnx"
    edit = Edit(path)
    for node in edit.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.op_type = "OtherAttention"  # which has lacks of its own
    edit.save()
    found = {name: lack for name, lack in lacks(folder).items() if "zero points" in lack}
    assert list(found) == wrong
    assert all("3 zero points" in lack for lack in found.values())


def misread(path: Path, *, inside: bool = False) -> None:
    """Adds a product whose rows have three zero points of 4 bits; inside: of the branches of an If."""
    edit = Edit(path)
    held = {"packed": np.zeros((4, 3, 16), np.uint8), "scale": np.ones((4, 3), np.float32),
            "zero": np.zeros((4, 2), np.uint8), "x": np.ones((1, 96), np.float32), "yes": np.array(True)}  # fmt: skip
    for name, values in held.items():
        edit.constant(name, values)

    def product(name: str) -> onnx.NodeProto:
        return helper.make_node("MatMulNBits", ["x", "packed", "scale", "zero"], [name], domain="com.microsoft",
                                K=96, N=4, bits=4, block_size=32)  # fmt: skip

    def branch(name: str) -> onnx.GraphProto:
        given = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4])
        return helper.make_graph([product(name)], name, [], [given])

    chosen = helper.make_node("If", ["yes"], ["odd"], then_branch=branch("then"), else_branch=branch("else"))
    edit.graph.node.append(chosen if inside else product("odd"))
    edit.save()


def test_what_a_gpu_misreads_is_found_inside_branches_too(tmp_path: Path) -> None:
    folder = transformers_js(tmp_path / "model")
    misread(folder / "onnx" / "model.onnx", inside=True)
    assert lacks(folder).keys() == {"cuda"}
    assert open_package(folder).external is not None


@pytest.mark.parametrize("odd", ["model_q4", "model_fp16"])
def test_a_gpu_is_given_a_graph_that_it_reads_rightly(
    tmp_path: Path, odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them the processor would take."""
    folder = transformers_js(tmp_path / "model", "model_q4.onnx", "model_fp16.onnx")
    misread(folder / "onnx" / f"{odd}.onnx")
    package = open_package(folder)
    (other,) = {"model_q4", "model_fp16"} - {odd}
    suited = on_gpu(package, "cuda", has_float16=True, memory=0)
    assert suited.graphs[0].file == f"onnx/{other}.onnx"
    assert on_gpu(package, "webgpu", has_float16=True, memory=0).graphs[0].file == "onnx/model_fp16.onnx"
    gpu = Device(name="cuda", backend="", description="", available=True)
    found = registry.DeviceCatalog(package)
    assert found._checked(gpu).available
    misread(folder / "onnx" / f"{other}.onnx")
    refused = registry.DeviceCatalog(open_package(folder))._checked(gpu)
    assert "3 zero points of 4 bits" in refused.reason


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_directml_does_not_get_attention_that_it_does_only_in_part(
    tiny_package: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    folder = stripped(tiny_package(family), tmp_path / "model")
    assert lacks(folder).keys() == {"directml"}
    assert "attention has do_rotary, which DirectML does not do" in lacks(folder)["directml"]
    assert lacks(transformers_js(tmp_path / "plain")) == {}


@pytest.mark.parametrize(
    ("inputs", "numbers", "said"),
    [
        # as onnxruntime-genai's builder writes it for DirectML
        ("q k v pk pv s t", {"do_rotary": 0, "local_window_size": -1, "softcap": 0.0}, None),
        ("q k v pk pv s t - - -", {}, None),
        ("q k v pk pv s t cos sin", {"do_rotary": 1}, "do_rotary"),
        ("q k v pk pv s t", {"local_window_size": 32}, "local_window_size"),
        ("q k v pk pv s t", {"softcap": 50.0}, "softcap"),
        ("q - - pk pv s t", {}, "q, k and v in one tensor"),
        ("q k v pk pv s t - - - - - - - qn kn", {}, "more inputs than the plain one"),
    ],
)
def test_only_plain_attention_is_for_directml(inputs: str, numbers: dict[str, float], said: str | None) -> None:
    names = tuple("" if name == "-" else name for name in inputs.split())
    node = Node(operator="GroupQueryAttention", inputs=names, outputs=("o", "nk", "nv"), numbers=numbers)
    found = faults(GraphSummary(inputs=(), outputs=(), nodes=(node,), files=(), stored=0, widths={}))
    assert found.keys() == (set() if said is None else {"directml", "cpu"} if "qn" in names else {"directml"})
    assert said is None or f"attention has {said}," in found["directml"]


def test_attention_that_norms_is_not_for_the_cpu_and_says_where_it_runs(
    tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    folder = stripped(tiny_package("qwen3"), tmp_path / "model")
    edit = Edit(folder / "model.onnx")
    attention = next(node for node in edit.graph.node if node.op_type == "GroupQueryAttention")
    attention.input.extend([""] * (14 - len(attention.input)))
    attention.input.extend([edit.constant("own.norm", np.ones(16, np.float32))] * 2)
    edit.save()
    with pytest.raises(DeviceUnavailable, match=r"attention norms q and k, which .*use the device 'cuda' or 'webgpu'"):
        embedllm.load(folder, device="cpu")


# What DirectML asks of a session, without DirectML


def on_directml_s_terms(folder: Path) -> ExternalGraphSession:
    package = open_package(folder)
    place = on_directml(devices()[0], package.context, provider="CPUExecutionProvider")
    return ExternalGraphEngine(package, package.graphs[0], place).open()


def test_a_mask_as_long_as_the_buffers_changes_nothing(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = stripped(tiny_package("llama", max_position_embeddings=600), tmp_path / "model")
    tokens = np.random.default_rng(5).integers(3, 200, 300).tolist()
    whole, session = opened(folder).feed_all(tokens), on_directml_s_terms(folder)
    for start, stop in ((0, 200), (200, 201), (201, 300)):
        np.testing.assert_allclose(session.feed_all(tokens[start:stop]), whole[start:stop], atol=2e-2)
    session.rewind(250)
    np.testing.assert_allclose(session.feed_all(tokens[250:]), whole[250:], atol=2e-2)


def test_graphs_that_copy_run_on_its_terms_too(tmp_path: Path) -> None:
    session = on_directml_s_terms(transformers_js(tmp_path / "model"))
    np.testing.assert_allclose(session.feed_all(TOKENS), expected(weights(), TOKENS), atol=1e-4)


# Which graph


@pytest.fixture
def several(tmp_path: Path) -> Path:
    return transformers_js(tmp_path / "model", "model.onnx", "model_fp16.onnx", "model_q4.onnx", "model_odd.onnx")


def test_the_fastest_graph_that_fits_is_chosen_and_named(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = open_package(several)
    assert package.graphs[0].file == "onnx/model_q4.onnx"
    assert package.external is not None
    assert package.external.passed_over == ("onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_odd.onnx")
    sizes = {path.name: path.stat().st_size for path in (several / "onnx").iterdir()}
    edit = Edit(several / "onnx" / "model_q4.onnx")
    edit.constant("ballast", np.zeros(9999, np.float32))
    edit.save()
    monkeypatch.setattr(onnx_folder, "free_bytes", lambda: sizes["model.onnx"] + 1)
    assert open_package(several).graphs[0].file == "onnx/model.onnx"
    monkeypatch.setattr(onnx_folder, "free_bytes", lambda: 1)
    assert open_package(several).graphs[0].file == "onnx/model.onnx"  # the smallest


def test_a_path_to_a_graph_chooses_it(several: Path) -> None:
    found = open_package(several / "onnx" / "model_fp16.onnx")
    assert (found.graphs[0].file, found.folder) == ("onnx/model_fp16.onnx", several)
    with embedllm.load(several / "onnx" / "model_fp16.onnx") as model:
        assert model.generate(TOKENS[:4], GREEDY, max_tokens=3, stop_tokens=()).tokens == greedy(TOKENS[:4], 3)


@pytest.mark.parametrize(
    ("has_float16", "memory", "file"),
    [
        (True, 0, "model_fp16.onnx"),
        (False, 0, "model_q4.onnx"),
        (True, 1, "model.onnx"),
        (False, 2**30, "model_q4.onnx"),
    ],
)
def test_a_gpu_takes_the_graph_that_suits_it(several: Path, has_float16: bool, memory: int, file: str) -> None:
    for name in ("model_q4", "model_fp16", "model_odd"):  # the smallest is model.onnx
        edit = Edit(several / "onnx" / f"{name}.onnx")
        edit.constant("ballast", np.zeros(9999, np.float32))
        edit.save()
    package = open_package(several)
    suited = on_gpu(package, "cuda", has_float16=has_float16, memory=memory)
    assert suited.graphs[0].file == f"onnx/{file}"
    assert suited.folder == package.folder
    asked = open_package(several / "onnx" / "model_odd.onnx")
    assert on_gpu(asked, "cuda", has_float16=has_float16, memory=memory) is asked


def test_the_graph_that_a_gpu_takes_keeps_to_the_limit_of_the_load(several: Path) -> None:
    package = open_package(several)
    package.limit_context(24)
    suited = on_gpu(package, "cuda", has_float16=True, memory=0)
    assert suited is not package
    assert (suited.context, suited.larger_context) == (24, "load with a larger context")


def test_a_graph_that_a_gpu_would_take_and_that_cannot_be_fed_gives_way(several: Path) -> None:
    with_more(several / "onnx" / "model_fp16.onnx")
    package = open_package(several)
    assert on_gpu(package, "cuda", has_float16=True, memory=0) is package


def test_a_graph_without_its_weights_is_passed_over(tmp_path: Path) -> None:
    folder = transformers_js(tmp_path / "model", "model_q4.onnx", beside=True)
    shutil.copytree(folder / "onnx", tmp_path / "kept")
    (folder / "onnx" / "model.onnx_data").rename(folder / "onnx" / "elsewhere")
    plain = transformers_js(tmp_path / "plain")
    (plain / "onnx" / "model.onnx").rename(folder / "onnx" / "model.onnx")
    assert open_package(folder).graphs[0].file == "onnx/model.onnx"
    with pytest.raises(PackageError, match=r"cannot read '.*model\.onnx_data'.*Fetch that file too"):
        open_package(folder / "onnx" / "model_q4.onnx")
    (folder / "onnx" / "elsewhere").rename(folder / "onnx" / "model.onnx_data")
    package = open_package(folder)
    assert package.graphs[0].file == "onnx/model_q4.onnx"
    assert package.stored.bytes == sum(path.stat().st_size for path in (tmp_path / "kept").iterdir())


def test_a_manifest_of_ours_goes_first(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package("llama"))
    assert (package.folder / "genai_config.json").is_file()
    assert package.external is None
    with pytest.raises(PackageError, match="is a file of an exported folder; give the folder"):
        open_package(package.folder / "model.onnx")


def test_a_folder_inside_a_package_of_ours_is_its_own(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    ours = Path(shutil.copytree(tiny_package("llama"), tmp_path / "ours"))
    assert open_package(transformers_js(ours / "theirs")).external is not None


# onnxruntime-genai


def test_sizes_that_the_graph_does_not_tell_are_in_the_configuration(tmp_path: Path) -> None:
    folder = transformers_js(tmp_path / "model")
    edit = Edit(folder / "onnx" / "model.onnx")
    for part in ("key", "value"):
        edit.drop_input(f"past_key_values.0.{part}")
        edit.add_input(f"past_key_values.0.{part}", 1, ["batch", "heads", "past", "kv_cache_dim"])
    edit.save()
    with pytest.raises(PackageError, match=r"has the shape \['batch', 'heads', 'past', 'kv_cache_dim'\]; expected"):
        open_package(folder)
    write_config(folder, num_attention_heads=HEADS, hidden_size=HEADS * SIZE)
    assert open_package(folder).external_graph.kv == ((HEADS, SIZE),)
    write_config(folder, num_key_value_heads=HEADS, head_dim=SIZE)
    np.testing.assert_allclose(opened(folder).feed_all(TOKENS), expected(weights(), TOKENS), atol=1e-4)


def write_config(folder: Path, **values: object) -> None:
    config = {"max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY, **values}
    (folder / "config.json").write_text(json.dumps(config))


def test_a_folder_with_names_of_its_own_is_fed_by_them(tmp_path: Path) -> None:
    with embedllm.load(genai(tmp_path / "model")) as model:
        assert model.generate(TOKENS[:5], GREEDY, max_tokens=6, stop_tokens=()).tokens == greedy(TOKENS[:5], 6)
        assert model.package.stop_tokens == (7, 9, 2, 0)
        assert model.sampling == embedllm.Sampling(temperature=0.5, top_k=3, top_p=0.9)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_attention_that_appends_gives_what_our_own_engine_gives(
    tiny_package: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    ours = tiny_package(family, max_position_embeddings=600)
    folder = stripped(ours, tmp_path / "model")
    package = open_package(folder)
    assert package.external is not None
    assert package.external.names.appends
    tokens = np.random.default_rng(5).integers(3, 200, 300).tolist()
    replies = []
    for path in (ours, folder):
        with embedllm.load(path, device="cpu", exact=True) as model:
            replies.append(model.generate(tokens[:270], GREEDY, max_tokens=20, stop_tokens=()).tokens)
    assert replies[0] == replies[1]
    session = opened(folder)
    whole = session.feed_all(tokens)  # more than the first buffers hold
    session.rewind(250)
    np.testing.assert_allclose(session.feed_all(tokens[250:]), whole[250:], atol=2e-2)
    state = session.export_state(0, 290)
    other = opened(folder)
    other.import_state(state)
    np.testing.assert_allclose(other.feed_all(tokens[290:]), whole[290:], atol=2e-2)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ([], ""),
        ([{"cuda": {"enable_cuda_graph": "0"}}], "cuda"),
        ([{"dml": {}}], "directml"),
        ([{"QNN": {}}, {"WebGPU": {}}], "webgpu"),
        ("cuda", ""),
        ([3], ""),
    ],
)
def test_the_device_that_a_genai_folder_was_made_for_goes_first(
    tmp_path: Path, options: object, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = genai(tmp_path / "model")
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"] = {"provider_options": options}
    (folder / "genai_config.json").write_text(json.dumps(config))
    package = open_package(folder)
    assert package.external is not None
    assert package.external.prefers == first
    caplog.set_level("INFO", "embedllm")
    with embedllm.load(folder) as model:
        assert not first or model.device.name == first or f"not {first}: " in caplog.text
        assert model.generate(TOKENS[:5], GREEDY, max_tokens=3, stop_tokens=()).tokens == greedy(TOKENS[:5], 3)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"encoder": {"filename": "encoder.onnx"}}, "the section 'encoder'.*pip install onnxruntime-genai"),
        ({"decoder": 3}, "'decoder' .* is 3; expected an object"),
        ({"decoder": {"filename": "../model.onnx"}}, "names the file"),
        ({"decoder": {"filename": "none.onnx"}}, "none.onnx"),
        ({"decoder": {"inputs": 3}}, "'inputs' .* is 3; expected an object"),
        ({"decoder": {"inputs": {"past_key_names": "past"}}}, "expected one %d"),
        ({"eos_token_id": VOCABULARY}, "a stop token .* is 307; expected 0 to 306"),
    ],
)
def test_what_a_genai_folder_has_that_is_not_run_is_said(tmp_path: Path, model: dict[str, object], said: str) -> None:
    with pytest.raises(PackageError, match=said):
        open_package(genai(tmp_path / "model", **model))


# What is refused


def test_a_folder_of_nothing_known_lists_what_was_looked_for_and_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"")
    with pytest.raises(PackageError, match=r"genai_config\.json.*openvino_model\.xml .*there is: weights\.gguf"):
        open_package(tmp_path)


def renamed(path: Path, name: str, given: str) -> None:
    edit = Edit(path)
    next(one for one in edit.graph.input if one.name == name).name = given
    edit.rename_input(name, given)
    edit.save()


def without_past(path: Path) -> None:
    for part in ("key", "value"):
        renamed(path, f"past_key_values.0.{part}", f"state_{part}")


def with_embeddings(path: Path) -> None:
    renamed(path, "input_ids", "inputs_embeds")


def with_more(path: Path) -> None:
    edit = Edit(path)
    edit.add_input("past_conv.0", 1, ["batch", 8, 3])
    edit.save()


def with_three_positions(path: Path) -> None:
    edit = Edit(path)
    edit.drop_input("position_ids")
    edit.add_input("position_ids", 7, [3, "batch", "tokens"])
    edit.save()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_past, "no keys and values of what came before"),
        (with_embeddings, "expected 'input_ids'. A graph that takes embeddings"),
        (with_more, r"takes 'past_conv\.0', which this library does not know how to feed"),
        (with_three_positions, "'position_ids' of .* has the shape"),
    ],
)
def test_graphs_that_cannot_be_fed_say_why(tmp_path: Path, change: Callable[[Path], None], said: str) -> None:
    folder = transformers_js(tmp_path / "model")
    change(folder / "onnx" / "model.onnx")
    with pytest.raises(PackageError, match=said):
        open_package(folder)


def times(factor: float) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        edit = Edit(path)
        edit.constant("own.factor", np.float32(factor))
        edit.rename_output("logits", "logits.all")
        edit.last("Mul", ["logits.all", "own.factor"], "logits")
        edit.save()

    return change


def with_fewer_logits(path: Path) -> None:
    """Of the first tokens of the vocabulary only."""
    edit = Edit(path)
    for name, value in (("start", 0), ("end", 3), ("axis", 2)):
        edit.constant(f"own.{name}", [value])
    edit.rename_output("logits", "logits.all")
    edit.last("Slice", ["logits.all", "own.start", "own.end", "own.axis"], "logits")
    edit.save()


def without_a_batch(path: Path) -> None:
    edit = Edit(path)
    edit.constant("own.axis", [0])
    edit.rename_output("logits", "logits.all")
    edit.last("Squeeze", ["logits.all", "own.axis"], "logits")
    edit.save()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (times(0), "gives zero for every logit"),
        (times(np.nan), "not finite numbers: nan"),
        (with_fewer_logits, r"logits of the shape \[6, 3\] for 6 tokens"),
        (without_a_batch, r"logits of the shape \[\d+\] for 6 tokens"),
    ],
)
def test_graphs_that_give_no_logits_are_refused_by_what_they_give(
    tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    folder = transformers_js(tmp_path / "model")
    change(folder / "onnx" / "model.onnx")
    with pytest.raises(DeviceUnavailable, match=f"{said}.* is damaged, or it is no decoder"):
        embedllm.load(folder, device="cpu")


def test_a_feed_of_a_wrong_shape_says_what_is_taken(tmp_path: Path) -> None:
    session = opened(transformers_js(tmp_path / "model"))
    for tokens in ([[1, 2]], np.array([[1, 2], [3, 4]]), [1.5, 2.0], ["a"]):
        with pytest.raises(ValueError, match="token ids in one list"):
            session.feed(tokens)  # pyright: ignore[reportArgumentType] # that is the slip
    assert session.position == 0
    assert session.feed(np.array([1, 2])).size  # pyright: ignore[reportArgumentType] # an array is a list of ids, too


def test_texts_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = transformers_js(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(PackageError, match=r"has no tokenizer\.json"):
        embedllm.load(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(PackageError, match="says how many tokens the model holds; expected one of max_position"):
        open_package(folder)


# The command line


def test_inspect_says_which_graph_is_run(several: Path) -> None:
    shown = json.loads(embed("inspect", str(several), "--json").stdout)
    assert shown["graph"] == "onnx/model_q4.onnx"
    assert shown["maker"] == "transformers.js or optimum"
    assert shown["kv"] == {"2 KV heads of 32": 1}
    assert "not chosen" in embed("inspect", str(several)).stdout
    assert "leave out --check" in embed("inspect", str(several), "--check").stderr


def test_run_answers_with_a_external_folder(tmp_path: Path) -> None:
    folder = stripped(package_folder("demo"), tmp_path / "model")
    assert not (folder / MANIFEST).exists()
    arguments = ("list all files", "--max-tokens", "8", "--device", "cpu")
    theirs, ours = (embed("run", *arguments, "--model", str(model)) for model in (folder, "demo"))
    assert theirs.exit_code == 0
    assert theirs.stdout == ours.stdout


def test_eval_measures_a_external_folder_beside_ours(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    ours = tiny_package("qwen3")
    folder, text = stripped(ours, tmp_path / "model"), tmp_path / "text"
    text.write_text("def main(): print('hello, world')")
    arguments = ("--text", str(text), "--tokens", "0", "--window", "8", "--device", "cpu", "--json", "-")
    found = json.loads(embed("eval", str(folder), str(ours), *arguments).stdout)["models"]
    assert found[0]["text"] == found[1]["text"]
    assert found[0]["bits_per_weight"] is None
    assert found[1]["bits_per_weight"] > 4
    assert "unknown" in embed("eval", str(folder), *arguments[:-2]).stdout
