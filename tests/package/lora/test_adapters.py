"""Adapters on every device that takes them: against the merged model, switched, batched, and never mixed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedllm.backends.base import BatchRow, Engine, FeedsAll, RunsBatches, Session, TakesAdapters
from embedllm.backends.devices.registry import DeviceCatalog, open_engine
from embedllm.errors import DeviceUnavailable
from embedllm.export import Recipe, convert
from embedllm.export.graphs import write_variant
from embedllm.package.lora.adapter import Adapter
from embedllm.package.lora.peft import read_adapter
from embedllm.package.package import open_package
from embedllm.package.tensors import linears
from tests.support.openings import device
from tests.support.peft_folders import ALL, merged_checkpoint, write_adapter
from tests.support.tiny import tiny_checkpoint

TOKENS = [5, 17, 200, 3, 88, 41, 9, 120, 7, 64, 30, 2]
DEVICES = ("reference", "cpu", "openvino")
EXACT_ATOL = 2e-5  # of float32 products in another order; logits are about 1
FLOATS = Recipe(bits=32)


def engine(folder: Path, name: str, *, adapts: bool = True, kv: str | None = None) -> Engine:
    return open_engine(open_package(folder), device(name), exact=kv is None, adapts=adapts, kv=kv)


def adapted(opened: Engine, adapter: Adapter | None) -> Session:
    session = opened.open()
    assert isinstance(session, TakesAdapters)
    session.adapt(adapter)
    return session


def values(session: Session, tokens: Sequence[int]) -> np.ndarray:
    return np.array(session.feed(tokens).values(range(307)))


def rows(session: Session, tokens: Sequence[int]) -> np.ndarray:
    """Of a piece, of single tokens, and of a piece whose every row is wanted."""
    assert isinstance(session, FeedsAll)
    first = values(session, tokens[:5])
    single = [values(session, [token]) for token in tokens[5:8]]
    return np.array([first, *single, *session.feed_all(tokens[8:])])


class Made:
    """A checkpoint, adapters of it, and packages: its own, and those of its merged forms."""

    def __init__(self, folder: Path, family: str, recipe: Recipe, **config: object) -> None:
        self.checkpoint = tiny_checkpoint(folder / "checkpoint", family, **config)  # type: ignore[arg-type]
        self.package = convert(self.checkpoint, folder / "package", recipe)
        self.paths = [
            write_adapter(folder / "all", self.checkpoint, rank=6, seed=1),
            write_adapter(folder / "some", self.checkpoint, targets=["q_proj", "v_proj", "down_proj"], rank=3, seed=2),
        ]
        self._folder, self._recipe = folder, recipe
        self.decoder = open_package(self.package).decoder
        self.matrices = [linear for layer in self.decoder.layers for linear in linears(layer)]
        self.adapters = [read_adapter(path.name, path, self.decoder) for path in self.paths]

    def merged(self, index: int) -> Path:
        out = self._folder / f"merged{index}"
        if not out.exists():
            checkpoint = merged_checkpoint(self.checkpoint, self.paths[index], self._folder / f"checkpoint{index}")
            convert(checkpoint, out, self._recipe)
        return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    found: dict[str, Made] = {}

    def make(family: str = "llama", recipe: Recipe = FLOATS, **config: object) -> Made:
        key = f"{family} {recipe} {config}"
        if key not in found:
            found[key] = Made(tmp_path_factory.mktemp("adapters"), family, recipe, **config)
        return found[key]

    return make


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])  # plain, with biases, with norms over the heads
@pytest.mark.parametrize("device", DEVICES)
def test_the_bare_model_with_an_adapter_is_the_merged_model(
    device: str, family: str, made: Callable[..., Made]
) -> None:
    model = made(family)
    opened = engine(model.package, device)
    bare = rows(engine(model.package, device, adapts=False).open(), TOKENS)
    np.testing.assert_allclose(rows(opened.open(), TOKENS), bare, atol=EXACT_ATOL)
    for index, adapter in enumerate(model.adapters):
        expected = rows(engine(model.merged(index), device, adapts=False).open(), TOKENS)
        assert np.abs(expected - bare).max() > 0.1  # the adapter does something
        np.testing.assert_allclose(rows(adapted(opened, adapter), TOKENS), expected, atol=EXACT_ATOL)


@pytest.mark.parametrize(
    ("recipe", "config"),
    [
        (Recipe(), {"intermediate_size": 80, "attention_bias": True, "mlp_bias": True}),  # no multiple of the group
        (Recipe(bits=8, symmetric=False, exact=True), {"intermediate_size": 80}),
        (Recipe(bits=16), {"num_hidden_layers": 1}),  # the one layer is the last, which is cut to what is wanted
    ],
    ids=["4 bits, ragged, biases", "8 bits, zero points", "16 bits, one layer"],
)
@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_packed_matrices_take_adapters_as_the_reference_does(
    device: str, recipe: Recipe, config: dict[str, object], made: Callable[..., Made]
) -> None:
    model = made("llama", recipe, **config)
    for adapter in (None, *model.adapters):
        expected = rows(adapted(engine(model.package, "reference"), adapter), TOKENS)
        found = rows(adapted(engine(model.package, device), adapter), TOKENS)
        np.testing.assert_allclose(found, expected, atol=EXACT_ATOL)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chosen=st.dictionaries(
        st.sampled_from([f"{layer}.{part}" for layer in (0, 1) for part in ALL]), st.integers(1, 80)
    ),
    seed=st.integers(0, 2**16),
)
@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_any_ranks_of_any_matrices_give_what_the_reference_gives(
    device: str, made: Callable[..., Made], chosen: dict[str, int], seed: int, opened: Callable[..., Engine]
) -> None:
    random = np.random.default_rng(seed)
    model = made()
    names = {f"{linear.source.split('.')[2]}.{linear.source.rpartition('.')[2]}": linear for linear in model.matrices}
    factors = {
        names[key].name: (
            (random.standard_normal((names[key].columns, rank)) / 8).astype(np.float32),
            (random.standard_normal((rank, names[key].rows)) / rank).astype(np.float32),
        )
        for key, rank in chosen.items()
    }
    adapter = Adapter(name="random", sha256=str(seed), factors=factors)
    expected = rows(adapted(opened(model.package, "reference"), adapter), TOKENS)
    np.testing.assert_allclose(rows(adapted(opened(model.package, device), adapter), TOKENS), expected, atol=1e-4)


@pytest.fixture(scope="module")
def opened() -> Callable[..., Engine]:
    found: dict[tuple[Path, str], Engine] = {}

    def open_once(folder: Path, name: str) -> Engine:
        if (folder, name) not in found:
            found[folder, name] = engine(folder, name)
        return found[folder, name]

    return open_once


@pytest.mark.parametrize("device", DEVICES)
def test_one_session_switches_and_others_keep_theirs(device: str, made: Callable[..., Made]) -> None:
    model = made()
    opened = engine(model.package, device)
    one, two = model.adapters
    alone = [rows(adapted(opened, adapter), TOKENS) for adapter in (one, two, None)]
    switching, other = adapted(opened, None), adapted(opened, two)
    for adapter, expected in zip((one, two, None, one), [*alone, alone[0]], strict=True):
        switching.rewind(0)
        other.rewind(0)
        assert isinstance(switching, TakesAdapters)
        switching.adapt(adapter)
        np.testing.assert_array_equal(rows(switching, TOKENS), expected)
        np.testing.assert_array_equal(rows(other, TOKENS), alone[1])


@pytest.mark.parametrize("device", DEVICES)
def test_a_session_that_holds_tokens_takes_no_other_adapter(device: str, made: Callable[..., Made]) -> None:
    session = adapted(engine(made().package, device), None)
    session.feed(TOKENS)
    assert isinstance(session, TakesAdapters)
    with pytest.raises(ValueError, match="holds 12 tokens"):
        session.adapt(made().adapters[0])


@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_an_engine_that_was_opened_without_takes_none(device: str, made: Callable[..., Made]) -> None:
    session = engine(made().package, device, adapts=False).open()
    assert isinstance(session, TakesAdapters)
    session.adapt(None)
    with pytest.raises(ValueError, match="opened without adapters"):
        session.adapt(made().adapters[0])


def test_two_devices_that_share_a_sequence_both_take_it(made: Callable[..., Made]) -> None:
    model = made()
    package = open_package(model.package)
    pair = next(
        one for one in DeviceCatalog(package, exact=True, adapts=True).lookup("openvino+cpu") if "+" in one.name
    )
    opened = open_engine(package, pair, exact=True, adapts=True)
    tokens = (TOKENS * 4)[:40]  # enough to be read by the first
    for adapter in (*model.adapters, None):
        session, alone = adapted(opened, adapter), adapted(engine(model.package, "cpu"), adapter)
        for piece in (tokens, [3], [9]):
            np.testing.assert_allclose(values(session, piece), values(alone, piece), atol=EXACT_ATOL)


def test_a_quantized_kv_goes_with_an_adapter_where_its_scales_are_found_as_it_is_written(
    tmp_path: Path,
) -> None:
    model = Made(tmp_path, "llama", Recipe(method="search", symmetric=True))
    for adapter in (None, *model.adapters):
        expected = rows(adapted(engine(model.package, "reference"), adapter), TOKENS)
        found = rows(adapted(engine(model.package, "openvino", kv="int8"), adapter), TOKENS)
        assert np.abs(found - expected).max() < 0.1  # int8 KV and bfloat16 or int8 activations (docs/numerics.md)
    write_variant(model.package, "int8-kv", tokens=TOKENS * 20)
    with pytest.raises(DeviceUnavailable, match="int8 KV were found without adapters"):
        engine(model.package, "cpu", kv="int8")


def test_a_run_of_several_sequences_has_their_adapter(made: Callable[..., Made]) -> None:
    model = made()
    opened = engine(model.package, "cpu")
    assert isinstance(opened, RunsBatches)
    for adapter in (model.adapters[0], None, model.adapters[1], model.adapters[1]):
        together, alone = ([adapted(opened, adapter), adapted(opened, adapter)] for _ in range(2))
        for sessions in (together, alone):
            for session, count in zip(sessions, (9, 4), strict=True):
                session.feed(TOKENS[:count])
        logits = opened.run_batch([BatchRow(together[0], [5]), BatchRow(together[1], [6])])
        for row, session, token in zip(logits, alone, (5, 6), strict=True):
            np.testing.assert_allclose(row.values(range(307)), values(session, [token]), atol=EXACT_ATOL)


def test_other_devices_refuse_adapters_and_say_what_helps(made: Callable[..., Made]) -> None:
    package = open_package(made().package)
    plain, adapting = DeviceCatalog(package).everything(), DeviceCatalog(package, adapts=True).everything()
    for before, now in zip(plain, adapting, strict=True):
        if before.available and before.name not in DEVICES:
            assert not now.available
            assert now.reason == "it takes no adapters with this library"
            assert "embedllm export --lora" in now.remedy
        else:
            assert now == before
    assert {device.name for device in adapting if device.available} == set(DEVICES)
    for name in ("openvino:AUTO:CPU", "cpu+npu-on-cpu", "openvino:HETERO:CPU"):  # on none of which they were tried
        assert not DeviceCatalog(package, adapts=True).lookup(name)[-1].available
    assert "npu-on-cpu" in {device.name for device in plain if device.available}


def test_a_graph_without_the_products_is_an_error_that_names_one(made: Callable[..., Made], tmp_path: Path) -> None:
    from embedllm.backends.ort.lora import with_adapters

    model, deeper = made(), tiny_checkpoint(tmp_path / "deeper", "llama", num_hidden_layers=3)
    decoder = open_package(convert(deeper, tmp_path / "package", FLOATS)).decoder
    with pytest.raises(ValueError, match=r"no product 'layers\.2\.qkv'"):
        with_adapters(model.package / "model.onnx", decoder)


def test_an_export_with_lora_is_that_of_the_merged_checkpoint(made: Callable[..., Made], tmp_path: Path) -> None:
    model = made("qwen2")
    out = convert(model.checkpoint, tmp_path / "merged", FLOATS, lora=model.paths[0])
    found = rows(engine(out, "reference", adapts=False).open(), TOKENS)
    expected = rows(engine(model.merged(0), "reference", adapts=False).open(), TOKENS)
    np.testing.assert_allclose(found, expected, atol=EXACT_ATOL)
    manifest = json.loads((out / "embedllm.json").read_text())
    assert manifest["lora"] == {"name": "all", "sha256": model.adapters[0].sha256}
