"""What config.json says of matrices that are quantized already: GPTQ, AWQ, compressed-tensors, FP8 and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embedllm.errors import ExportError

GROUPS = (16, 32, 64, 128, 256)  # sizes that matrices are stored in
WHOLE = 128  # a scale for a whole row is one for each group of this size
_FLOAT4 = {"nvfp4-pack-quantized": 16, "mxfp4-pack-quantized": 32}  # formats of compressed-tensors: group
_KEYS = ("quantization_config", "quantization")  # of config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the matrices of a checkpoint are packed, of which one may be left out."""

    # "gptq", "awq", "gemv" (AWQ's, too), "compressed" or "mlx"; "scaled": of 8 bits each, with scales;
    # "float4": NVFP4 and MXFP4; "bitsandbytes"; "hqq"
    kind: str
    bits: int
    group: int  # -1: a scale for a whole row
    less: int = 0  # by how much zero points are stored too small
    block: tuple[int, int] | None = None  # of "scaled": rows and columns of a scale; None: one for a row, or for all

    @property
    def words(self) -> str:
        """What the tensor of integers is called."""
        return {"gptq": "qweight", "awq": "qweight", "gemv": "qweight", "compressed": "weight_packed"}.get(
            self.kind, "weight"
        )


def scheme_of(config: Mapping[str, object]) -> Scheme | None:
    """What config.json says of the matrices; None where it says nothing, or what is not read here.

    Raises ExportError for a form of a known scheme that is not read.
    """
    settings = next((section for key in _KEYS if isinstance(section := config.get(key), Mapping)), None)
    if settings is None:
        return None
    method, bits, group = settings.get("quant_method"), settings.get("bits"), settings.get("group_size")
    if method == "gptq":
        form = settings.get("checkpoint_format", "gptq")
        _expect("checkpoint_format", form, ("gptq", "gptq_v2"))
        return _scheme("gptq", bits, group, (2, 3, 4, 8), less=int(form == "gptq"))
    if method == "awq":
        version = str(settings.get("version", "gemm")).lower()
        _expect("version", version, ("gemm", "gemv"))
        return _scheme("awq" if version == "gemm" else "gemv", bits, group, (4,))
    if method == "compressed-tensors":
        return _compressed(settings)
    if method == "bitsandbytes":
        return Scheme(kind="bitsandbytes", bits=8 if settings.get("load_in_8bit") else 4, group=-1)
    if method == "hqq":
        return Scheme(kind="hqq", bits=8, group=-1)  # each matrix says its own
    if method in ("fp8", "fbgemm_fp8"):
        return _scaled(settings.get("weight_block_size"))
    if method == "modelopt":
        _expect("quant_algo", settings.get("quant_algo"), ("FP8", "NVFP4"))
        return _scaled(None) if settings["quant_algo"] == "FP8" else Scheme(kind="float4", bits=4, group=16)
    if method is None and "group_size" in settings:
        _expect("mode", settings.get("mode", "affine"), ("affine",))
        if own := [name for name, each in settings.items() if isinstance(each, Mapping)]:
            raise ExportError(f"config.json quantizes '{own[0]}' in a way of its own; expected all matrices alike.")
        return _scheme("mlx", bits, group, (2, 4, 8))
    return None


def _compressed(settings: Mapping[str, object]) -> Scheme:
    form, groups = str(settings.get("format")), settings.get("config_groups")
    _expect("format", form, ("pack-quantized", "float-quantized", "int-quantized", "naive-quantized", *_FLOAT4))
    if settings.get("transform_config"):
        raise ExportError(
            "config.json has a 'transform_config': the model turns what its matrices read, which is not done here. "
            "Export from the checkpoint that it was made from."
        )
    weight_settings = [each.get("weights") for each in groups.values()] if isinstance(groups, Mapping) else []
    if len(weight_settings) != 1 or not isinstance(weight_settings[0], Mapping):
        raise ExportError("config.json has several groups of quantized matrices, or none; expected one.")
    weights, strategy = weight_settings[0], weight_settings[0].get("strategy")
    if form == "pack-quantized":
        _expect("actorder", weights.get("actorder"), (None, "group", "dynamic", "static", "weight"))
        group = -1 if strategy == "channel" else weights.get("group_size")
        return _scheme("compressed", weights.get("num_bits"), group, (4, 8))
    if form in _FLOAT4:
        _expect("group_size", weights.get("group_size"), (_FLOAT4[form],))
        _expect("symmetric", weights.get("symmetric", True), (True,))
        return Scheme(kind="float4", bits=4, group=_FLOAT4[form])
    _expect("num_bits", weights.get("num_bits"), (8,))
    _expect("strategy", strategy, ("tensor", "channel", "block"))
    _expect("symmetric", weights.get("symmetric", True), (True,))
    return _scaled(weights.get("block_structure") if strategy == "block" else None)


def _scaled(block: object) -> Scheme:
    """block: rows and columns of a scale; None: one for a row, or for the whole matrix."""
    if block is None:
        return Scheme(kind="scaled", bits=8, group=-1)
    if not isinstance(block, list) or len(block) != 2 or not all(type(each) is int and each > 0 for each in block):
        raise ExportError(f"config.json has blocks of {block!r} weights; expected rows and columns, as [128, 128].")
    return Scheme(kind="scaled", bits=8, group=-1, block=(block[0], block[1]))


def without_scheme(config: Mapping[str, object]) -> dict[str, object]:
    """What config.json says besides."""
    return {key: value for key, value in config.items() if key not in _KEYS}


def _scheme(kind: str, bits: object, group: object, allowed: tuple[int, ...], less: int = 0) -> Scheme:
    _expect("bits", bits, allowed)
    if type(bits) is not int or type(group) is not int or not (group == -1 or group in GROUPS or _repeats(group)):
        raise ExportError(f"the model's weights are in groups of {group!r}; expected 16, 32, 64, or a multiple of 128.")
    return Scheme(kind=kind, bits=bits, group=group, less=less)


def _repeats(group: int) -> bool:
    return group > 0 and group % WHOLE == 0


def _expect(what: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ExportError(
            f"the model is quantized already, with {what} {value!r} in config.json; expected "
            f"{' or '.join(map(repr, allowed))}. Export from the checkpoint that it was made from."
        )
