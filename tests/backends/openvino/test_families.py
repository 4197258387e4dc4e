"""Every field of a described decoder in the OpenVINO model, against the reference: a case changes one thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest

from embedllm.backends.devices.registry import devices_for, open_engine
from embedllm.backends.openvino.engine import OvEngine, OvSession
from embedllm.backends.openvino.paged_engine import PagedSession
from embedllm.backends.openvino.runtime import core
from embedllm.backends.reference.engine import ReferenceEngine, ReferenceSession
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.export import Recipe
from embedllm.export.layout import CONSTANTS
from embedllm.export.openvino import decoder as openvino_graph
from embedllm.files.safetensors_header import read_header
from embedllm.package.package import WEIGHTS, open_package
from tests.support.decoder_cases import CASES, VOCABULARY, plain
from tests.support.described import described_package
from tests.support.openings import device as by_name
from tests.support.openings import npu_engine, ov_engine, paged_engine
from tests.support.packing_cases import PACKED, with_recipes

if TYPE_CHECKING:
    from embedllm.types import F32

Folder = Callable[[str, str], Path]
RECIPES = {"16 bits": Recipe(bits=16), "32 bits": Recipe(bits=32), "int4": Recipe(method="nearest")}
CLOSE = 1e-5  # of the spread of the logits; measured up to 7e-7: the order of float32 sums differs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A function that writes the package of a case and a recipe, once."""

    @cache
    def made(case: str, recipe: str) -> Path:
        place = tmp_path_factory.mktemp("described") / "package"
        return described_package(place, CASES[case](plain()), RECIPES[recipe], variant="openvino")

    return made


# --- what is computed


AnySession = ReferenceSession | OvSession | PagedSession


def steps(session: AnySession, tokens: list[int]) -> F32:
    """A prompt, steps, a rewind, several tokens on top, and three whose last logits alone are computed: 18 rows."""
    found = [session.feed_all(tokens[:9]), *(session.feed_all([token]) for token in tokens[9:12])]
    session.rewind(7)
    found += [session.feed_all(tokens[12:17])]
    return np.concatenate([*found, [session.feed(tokens[17:20]).values(range(VOCABULARY))]])


def some_tokens(count: int = 20) -> list[int]:
    return np.random.default_rng(5).integers(0, VOCABULARY, count).tolist()


def by_reference(place: Path) -> F32:
    return steps(ReferenceEngine(open_package(place)).open(), some_tokens())


def check(ours: F32, theirs: F32, close: float = CLOSE) -> None:
    spread = float(theirs.max() - theirs.min())
    assert spread > 0.5
    assert np.abs(ours - theirs).max() <= close * spread, np.abs(ours - theirs).max() / spread


@pytest.mark.parametrize(("case", "recipe"), with_recipes(RECIPES, every="int4"))
def test_logits_follow_the_reference(case: str, recipe: str, folder: Folder) -> None:
    place = folder(case, recipe)
    check(steps(ov_engine(place).open(), some_tokens()), by_reference(place))


def test_a_case_is_another_model_and_is_read_as_it_was_described(folder: Folder) -> None:
    for case, change in CASES.items():
        assert open_package(folder(case, "int4")).decoder == change(plain()) != plain(), case


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_sequences_side_by_side_follow_the_reference(case: str, folder: Folder) -> None:
    place = folder(case, "int4")
    if any(attention.softcap for attention in open_package(place).decoder.attentions):
        with pytest.raises(
            DeviceError,
            match="attention of 'package' has logit soft-capping, which paged attention does not",
        ):
            paged_engine(place)
        return
    check(steps(paged_engine(place).open(), some_tokens()), by_reference(place))


@pytest.mark.parametrize("case", ["softcap in a layer, gqa, window", "sinks", "mixture, gated shared expert"])
def test_rows_of_a_padded_batch_get_their_own_logits(case: str, folder: Folder) -> None:
    place, tokens = folder(case, "int4"), some_tokens()
    request = ov_engine(place).request()
    rows, mask = [tokens[:12], [0] * 5 + tokens[12:19]], [[1] * 12, [0] * 5 + [1] * 7]
    inputs = {
        "input_ids": np.array(rows), "attention_mask": np.array(mask), "beam_idx": np.arange(2, dtype=np.int32),
        "position_ids": np.maximum(np.cumsum(mask, axis=1) - 1, 0), "logits_from": np.zeros(1, np.int64),
    }  # fmt: skip
    request.infer(inputs)
    ours = request.get_tensor("logits").data
    for row, start, given in ((0, 0, tokens[:12]), (1, 5, tokens[12:19])):
        check(ours[row, start:], ReferenceEngine(open_package(place)).open().feed_all(given))


# the rounding of a router's scores would choose other experts in the two kinds of sessions alike, with these weights
@pytest.mark.parametrize("case", ["softcap", "sinks", "layer norm", "parallel", "mixture of all", "logits softcap"])
def test_usual_settings_are_close(case: str, folder: Folder) -> None:
    place = folder(case, "int4")
    check(steps(ov_engine(place, exact=False).open(), some_tokens()), by_reference(place), close=0.03)  # bf16: 0.01


def test_the_state_of_a_layer_with_capped_scores_moves(folder: Folder) -> None:
    place, tokens = folder("softcap in a layer, gqa, window", "int4"), some_tokens()
    engine = ov_engine(place)
    one, other = engine.open(), engine.open()
    expected = one.feed_all(tokens)
    other.import_state(one.export_state(0, 15))
    check(other.feed_all(tokens[15:]), expected[15:])


# --- how it is executed


def executed(place: Path) -> Counter[tuple[str, str]]:
    """(operation, element type) of what the plugin made of a model at its usual settings."""
    found: Counter[tuple[str, str]] = Counter()
    for node in ov_engine(place, exact=False).compiled.get_runtime_model().get_ops():
        kind, type_ = (node.rt_info[key].astype(str) for key in ("layerType", "runtimePrecision"))
        found[kind, type_] += 1
    return found


def test_experts_stay_packed_and_the_router_is_precise(folder: Folder) -> None:
    place = folder("mixture, gated shared expert", "int4")
    found = executed(place)
    products = {kind: count for (name, kind), count in found.items() if name == "FullyConnected"}
    experts = 7 * 3  # the shared one too
    # the head, and of two layers qkv, o and the experts; the weight of the shared one is no choice
    # one thread, or a processor without instructions for bfloat16, multiplies the weight of the shared one in float32
    precision = ov_engine(place, exact=False).compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    floats = {"f32": 2, "bf16": 2} if precision == "bf16" else {"f32": 4}
    assert products == {"u4": 2 * (2 + experts) + 1, **floats}
    assert found["TopK", "f32"] == found["Softmax", "f32"] == 2


@pytest.mark.parametrize(
    ("case", "kind", "count"),
    [("layer norm", "MVN", 5), ("sinks", "ScaledDotProductAttention", 2), ("scale", "ScaledDotProductAttention", 2),
     ("softcap in a layer, gqa, window", "ScaledDotProductAttention", 1), ("partial rotary embedding", "RoPE", 4),
     ("nope layer", "RoPE", 2), ("two rope bases", "RoPE", 4), ("post norms", "RMS", 13)],
)  # fmt: skip
def test_operations_are_recognised(case: str, kind: str, count: int, folder: Folder) -> None:
    assert sum(number for (name, _), number in executed(folder(case, "int4")).items() if name == kind) == count


# --- the file


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_openvino_writes_the_same_operations_again(case: str, folder: Folder, tmp_path: Path) -> None:
    import openvino as ov

    place = folder(case, "int4")
    model = core().read_model(place / openvino_graph.FILE, place / WEIGHTS)
    ov.serialize(model, tmp_path / "again.xml", tmp_path / "again.bin")
    assert operations((place / openvino_graph.FILE).read_text()) == operations((tmp_path / "again.xml").read_text())


def operations(text: str) -> dict[str, tuple[str, str, Mapping[str, object]]]:
    """name -> type, version and attributes; without what says where a constant lies."""
    found: dict[str, tuple[str, str, Mapping[str, object]]] = {}
    for layer in ElementTree.fromstring(text).iterfind("layers/layer"):
        data = layer.find("data")
        given = {} if data is None else {k: v for k, v in data.attrib.items() if k not in ("offset", "size")}
        attributes = {key: np.float32(value) if key == "eps" else value for key, value in given.items()}
        found[layer.get("name", "")] = layer.get("type", ""), layer.get("version", ""), attributes
    return found


@pytest.mark.parametrize("case", PACKED)
def test_the_stored_constants_are_those_that_are_used(case: str, folder: Folder) -> None:
    place = folder(case, "int4")
    stored = read_header(place / WEIGHTS).tensors[CONSTANTS]
    used = bytearray(stored.length)
    for data in ElementTree.fromstring((place / openvino_graph.FILE).read_text()).iterfind("layers/layer/data"):
        if "offset" in data.attrib and 0 <= (start := int(data.attrib["offset"]) - stored.offset) < stored.length:
            assert start + int(data.attrib["size"]) <= stored.length
            used[start : start + int(data.attrib["size"])] = b"\1" * int(data.attrib["size"])
    rest = (place / WEIGHTS).read_bytes()[stored.offset : stored.offset + stored.length]
    assert not any(value for value, is_used in zip(rest, used, strict=True) if not is_used)  # gaps are zeros
    assert used.count(0) < 8 * used.count(1)


# --- what is refused


def test_the_npu_takes_no_mixture(folder: Folder) -> None:
    package = open_package(folder("mixture", "int4"))
    found = {device.name: device for device in devices_for(package, ["npu-on-cpu", "openvino"])}
    assert found["openvino"].available
    assert not found["npu-on-cpu"].available
    assert found["npu-on-cpu"].reason.startswith("'package' is a mixture of experts")


def test_capped_scores_have_a_kv_of_floats(folder: Folder) -> None:
    package, device = open_package(folder("softcap", "int4")), by_name("openvino")
    with pytest.raises(
        DeviceUnavailable, match="has logit soft-capping, which OpenVINO does with a KV of floats"
    ) as caught:
        open_engine(package, device, kv="int8")
    assert caught.value.tried[0][2] == "load it without kv"


def test_capped_scores_are_computed_without_paged_attention(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "embedllm"):
        engine = open_engine(open_package(folder("softcap", "int4")), by_name("openvino"))
    assert isinstance(engine, OvEngine)
    assert "which paged attention does not do" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("case", ["softcap", "sinks", "layer norm", "partial rotary embedding"])
def test_the_npu_on_the_cpu_follows_the_reference(case: str, folder: Folder, tmp_path: Path) -> None:
    place, tokens = folder(case, "32 bits"), some_tokens()
    session, reference = npu_engine(place, tmp_path).open(), ReferenceEngine(open_package(place)).open()
    for part in (tokens[:9], tokens[9:10], tokens[10:14]):
        ours, theirs = (np.array(one.feed(part).values(range(VOCABULARY))) for one in (session, reference))
        check(ours, theirs, close=1e-3)  # its KV is float16
