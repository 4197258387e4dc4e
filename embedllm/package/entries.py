"""What a manifest lists: the files of a folder, and its graphs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from embedllm.package.file_blocks import FileBlocks

LATENT = "latent"  # of MLA: keys are [rotary key, latent] of a token, one for all heads; there are no values
LATENT_AND_VALUES = "latent-and-values"  # the same keys, and as values the latent once more: of OpenVINO's operators


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One graph of a folder."""

    file: str
    variant: str
    activations: str  # "float32" or "float16"; the KV has the same type
    kv: str = ""  # LATENT, LATENT_AND_VALUES; empty: keys and values of every KV head

    def as_json(self) -> dict[str, str]:
        """The entry of a manifest."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file as it was written."""

    bytes: int
    sha256: str
    sampled_sha256: str = ""  # of blocks of it (embedllm/package/file_state.py); empty: none were hashed
    blocks: FileBlocks | None = None  # None: it has but one, or is of an earlier version

    def as_json(self) -> dict[str, object]:
        """The entry of a manifest."""
        entry: dict[str, object] = {"bytes": self.bytes, "sha256": self.sha256}
        if self.sampled_sha256:
            entry["sampled_sha256"] = self.sampled_sha256
        return entry if self.blocks is None else {**entry, "blocks": self.blocks.as_json()}
