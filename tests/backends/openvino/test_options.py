"""The choices for OpenVINO's devices: which values are refused, with what was found and expected; as options too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import embedllm
from embedllm.backends.openvino.properties import properties
from embedllm.backends.openvino.runtime import ov
from embedllm.backends.openvino.vision import OvVision
from embedllm.backends.options import OpenVINOOptions
from embedllm.backends.system.hardware import has_slow_bf16
from embedllm.export import Recipe, convert
from embedllm.loading.options import LoadOptions
from embedllm.package.package import open_package
from tests.cli.test_commands import embed
from tests.support.tiny import tiny_checkpoint
from tests.support.vision import vision_checkpoint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precision": "int8"}, "precision is 'int8'; expected one of f32, f16, bf16."),
        ({"kv": "u4"}, "kv is 'u4'; expected one of f32, f16, bf16, u8."),
        ({"cache": ""}, "cache is ''; expected the path of a folder."),
        ({"cache": 3}, "cache is 3; expected the path of a folder."),
        ({"latents": "yes"}, "latents is 'yes'; expected True, False or None."),
        ({"prompt": 0}, "prompt is 0; expected a number of tokens, at least 1."),
        ({"prompt": "64"}, "prompt is '64'; expected a number of tokens, at least 1."),
        ({"reply": True}, "reply is True; expected a number of tokens, at least 1."),
        ({"reply": 1.5}, "reply is 1.5; expected a number of tokens, at least 1."),
        ({"rounding_group": -1}, r"rounding_group is -1; expected 0 \(no rounding\) or a number of values."),
        ({"rounding_group": False}, "rounding_group is False; expected"),
    ],
)
def test_wrong_values_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OpenVINOOptions(**given)  # type: ignore[arg-type]  # wrong on purpose


def test_what_is_left_out_is_the_plugins() -> None:
    options = OpenVINOOptions()
    assert (options.precision, options.kv, options.rounding_group, options.cache) == (None, None, None, None)
    assert (options.prompt, options.reply) == (1024, 512)
    assert OpenVINOOptions(rounding_group=0, prompt=1, reply=1).rounding_group == 0


def test_floats_are_multiplied_by_one_thread_too(tiny_package: Callable[..., Path]) -> None:
    """In bfloat16, which processors with AMX take by default, OpenVINO 2026.4 ended the process."""
    with embedllm.load(tiny_package("llama", Recipe(bits=32)), device="openvino", threads=1) as llm:
        assert len(llm.generate([5, 6, 7], max_tokens=3, stop_tokens=[]).tokens) == 3


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[OpenVINOOptions | None]:
    """What load() was given; it ends the command."""
    found: list[OpenVINOOptions | None] = []

    def open_model(_: str, options: LoadOptions) -> None:
        found.append(options.openvino)
        raise embedllm.DeviceError("loaded")

    monkeypatch.setattr("embedllm.cli.options.open_model", open_model)
    return found


def test_every_key_reaches_the_model(given: list[OpenVINOOptions | None]) -> None:
    pairs = "precision=f32 rounding_group=0 kv=u8 cache=/some/where latents=true prompt=64 reply=32"
    options = [part for pair in pairs.split() for part in ("--openvino", pair)]
    assert embed("run", *options, "hello").stderr == "error: loaded\n"
    (found,) = given
    assert found is not None
    assert (found.precision, found.rounding_group, found.kv) == ("f32", 0, "u8")
    assert found.latents is True
    assert (found.cache, found.prompt, found.reply) == (Path("/some/where"), 64, 32)


def test_without_the_option_nothing_is_chosen(given: list[OpenVINOOptions | None]) -> None:
    embed("run", "hello")
    assert given == [None]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("speed=1", "'speed=1': expected KEY=VALUE with one of the keys precision,"),
        ("kv", "'kv': expected KEY=VALUE"),
        ("=1", "'=1': expected KEY=VALUE"),
        ("kv=u4", "kv is 'u4'; expected one of f32, f16, bf16, u8."),
        ("latents=1", "latents is '1'; expected True, False or None."),
        ("prompt=many", "prompt is 'many'; expected a number of tokens, at least 1."),
        ("prompt=-3", "prompt is '-3'; expected a number of tokens, at least 1."),
    ],
)
def test_wrong_pairs_are_a_mistake_of_usage(pair: str, message: str, given: list[OpenVINOOptions | None]) -> None:
    result = embed("run", "--openvino", pair, "hello")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split()).replace("│ ", "")
    assert given == []


@pytest.mark.parametrize(
    ("vendor", "flags", "slow"),
    [("GenuineIntel", "avx512f avx512_bf16", True), ("GenuineIntel", "avx512f avx512_bf16 amx_bf16 amx_tile", False),
     ("GenuineIntel", "avx512f avx512_vnni", False), ("AuthenticAMD", "avx512f avx512_bf16", False)],
)  # fmt: skip
def test_a_processor_of_intels_without_amx_is_slow_in_bf16(
    vendor: str, flags: str, *, slow: bool, tmp_path: Path
) -> None:
    core = f"vendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n\n"
    (tmp_path / "cpuinfo").write_text(core * 2)
    assert has_slow_bf16(tmp_path / "cpuinfo") is slow
    assert not has_slow_bf16(tmp_path / "none")


@pytest.mark.parametrize(
    ("bits", "options", "slow", "precision"),
    [
        (4, OpenVINOOptions(), True, "f32"),
        (4, OpenVINOOptions(), False, None),
        (16, OpenVINOOptions(), True, None),  # a step would read twice as much
        (4, OpenVINOOptions(precision="bf16"), True, "bf16"),
        (4, OpenVINOOptions(kv="bf16"), True, None),  # which attention by pages takes of bf16 only
    ],
)
def test_float32_is_asked_for_where_bf16_is_slow(
    bits: int, options: OpenVINOOptions, *, slow: bool, precision: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in (("has_bf16", True), ("has_slow_bf16", slow)):  # whatever processor this is
        monkeypatch.setattr(f"embedllm.backends.openvino.properties.{name}", lambda value=value: value)
    package = open_package(
        convert(tiny_checkpoint(tmp_path / "tiny"), tmp_path / "package", Recipe(bits=bits, method="nearest"))
    )
    assert properties(package, "CPU", options, 2, exact=False).get("INFERENCE_PRECISION_HINT") == precision
    assert properties(package, "GPU", options, 2, exact=False).get("INFERENCE_PRECISION_HINT") == options.precision


@pytest.mark.parametrize(("columns", "group"), [(128, 128), (80, None)], ids=["alike", "one of smaller groups"])
def test_activations_of_an_encoder_are_rounded_in_groups_of_its_weights(
    columns: int, group: int | None, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": columns, "num_attention_heads": 4}
    checkpoint = vision_checkpoint(tmp_path / "checkpoint", vision=sizes)
    package = open_package(convert(checkpoint, tmp_path / "package", Recipe(method="nearest")))
    name = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
    plugins = ov.Core().get_property("CPU", name)

    def rounding(options: OpenVINOOptions, *, exact: bool = False) -> object:
        chosen = properties(package, "CPU", options, 2, exact)
        return OvVision(package, "CPU", chosen).compiled.get_property(name)

    assert rounding(OpenVINOOptions()) == (group or plugins)
    assert rounding(OpenVINOOptions(rounding_group=64)) == 64
    assert rounding(OpenVINOOptions(), exact=True) == 0
