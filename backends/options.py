"""What makes a device faster or slower and its numbers never worse; what `embedllm tune` chooses. Standard library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MOST_THREADS = 1024  # ONNX Runtime takes any number, and a million of them until the machine gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """How a device computes, where that is left open by what was asked for.

    Nothing in here can round what is not rounded without it: a choice among RuntimeOptions never costs exactness.
    """

    threads: int = 0  # of the CPU; 0: number of physical cores
    spinning: bool = False  # ONNX Runtime's threads wait a millisecond for work before they sleep, not 20 us
    floats: bool = False  # activations stay float in 4-bit products, which is nearer: ONNX Runtime's on the CPU

    def __post_init__(self) -> None:
        if type(self.threads) is not int or not 0 <= self.threads <= MOST_THREADS:
            raise ValueError(f"threads is {self.threads!r}; expected 0 (number of physical cores) to {MOST_THREADS}.")
        for name in ("spinning", "floats"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected true or false.")

    def __str__(self) -> str:
        threads = "" if not self.threads else f"{self.threads} thread{'s' * (self.threads > 1)}"
        named = [threads, "spinning" * self.spinning, "float activations" * self.floats]
        return ", ".join(filter(None, named)) or "default"


DEFAULT = RuntimeOptions()


_PRECISIONS = ("f32", "f16", "bf16")
_KV_TYPES = ("f32", "f16", "bf16", "u8")  # not u4: rewinding it corrupts memory (OpenVINO 2026.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVINOOptions:
    """Choices for the devices "openvino", "openvino-gpu" and "npu". None leaves it to the plugin.

    What each costs in exactness is measured in docs/numerics.md; load(exact=True) goes before the first three.
    """

    precision: str | None = None
    """Of activations: "f32", "f16", "bf16". None: f32 where bf16 is slow (docs/performance.md#bf16)."""
    rounding_group: int | None = None
    """Values that share a scale where activations are rounded to int8; 0: not rounded. None: the plugin's, 32; of a
    vision encoder as many as of its weights."""
    kv: str | None = None
    """What the KV cache is stored as: "f32", "f16", "bf16", "u8"."""
    cache: str | Path | None = None
    """Folder for compiled models; None: in the user's cache folder."""
    latents: bool | None = None
    """Whether the device "openvino" keeps the latents of MLA, which takes less memory and more time; None: where whole
    keys and values of the package's context do not fit in the free memory."""
    prompt: int = 1024
    """NPU: tokens that its prefill model takes at once; the rest of a longer prompt goes in small steps."""
    reply: int = 512
    """NPU: tokens that it holds beyond those."""

    def __post_init__(self) -> None:
        for name, choices in (("precision", _PRECISIONS), ("kv", _KV_TYPES)):
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise ValueError(f"{name} is {value!r}; expected one of {', '.join(choices)}.")
        for name, value, least in (("prompt", self.prompt, 1), ("reply", self.reply, 1)):
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}; expected a number of tokens, at least {least}.")
        if not isinstance(self.cache, str | Path | None) or self.cache == "":
            raise ValueError(f"cache is {self.cache!r}; expected the path of a folder.")
        if not isinstance(self.latents, bool | None):
            raise ValueError(f"latents is {self.latents!r}; expected True, False or None.")
        group = self.rounding_group
        if group is not None and (type(group) is not int or group < 0):
            raise ValueError(f"rounding_group is {group!r}; expected 0 (no rounding) or a number of values.")
