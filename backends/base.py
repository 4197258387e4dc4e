"""What a backend is: protocols of an engine and a session; the checks that all sessions make are in checks.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

from embedllm.backends.options import DEFAULT, OpenVINOOptions, RuntimeOptions
from embedllm.package.entries import Graph
from embedllm.package.package import Package
from embedllm.types import Logits

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from embedllm.package.lora.adapter import Adapter
    from embedllm.sampling.draws import Draws
    from embedllm.types import F32

    Cached: TypeAlias = np.floating | np.integer  # integers: a quantized KV
    # by layer: keys, as they are after norm and rotation, and values; [kv heads, T, D] each
    KeyValues: TypeAlias = list[tuple[NDArray[Cached], NDArray[Cached]]]
    RecurrentStates: TypeAlias = Mapping[str, NDArray[np.floating]]  # by name (embedllm/package/recurrent_state.py)
    Span: TypeAlias = tuple[int, int]  # tokens: the first, and the one behind the last

H_co = TypeVar("H_co", covariant=True)  # hidden states of consecutive tokens, where the device has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Something that can run a model, or a reason why it can't."""

    name: str
    """What a caller asks for: "cpu", "cuda", "reference"."""
    backend: str
    """The runtime and its version: "onnxruntime 1.31.1"."""
    description: str
    """The hardware, in words."""
    available: bool
    """Whether a model can be loaded on it here."""
    reason: str = ""
    """Why it is not available."""
    remedy: str = ""
    """What to install or do."""
    memory: int = 0
    """Bytes of its own; 0: the machine's, or not known."""


class Unsupported(NamedTuple):
    """Why something cannot be done, and what helps."""

    reason: str
    remedy: str = ""


class Interrupted(Exception):
    """A feed was stopped from outside; the session stands where it stood before that feed."""


class Session(Protocol):
    """One sequence on one device: its KV cache and how far it has come."""

    position: int  # tokens held

    @property
    def capacity(self) -> int:
        """Most tokens it can hold without taking more memory; grows in steps up to the context."""
        ...

    def feed(self, tokens: Sequence[int]) -> Logits:
        """Append at least one token; the logits after the last of them, valid until the next feed.

        Raises ContextFull when they don't fit (nothing is appended), ValueError for an id outside the vocabulary,
        Interrupted.
        """
        ...

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on; ValueError unless 0 <= position <= self.position."""
        ...

    def close(self) -> None:
        """Give the memory back. Closing twice is fine."""
        ...


@runtime_checkable
class FeedsAll(Protocol):
    """A session that can give the logits after every token that it is fed."""

    def feed_all(self, tokens: Sequence[int]) -> F32:
        """As feed; returns [T, V]."""
        ...


@runtime_checkable
class FeedsRows(Protocol):
    """A session whose logits after every token can stay where the device has them."""

    def feed_rows(self, tokens: Sequence[int]) -> Sequence[Logits]:
        """As feed; the logits after each of them, valid until the next feed, also after a rewind."""
        ...


class KeptHidden(Protocol[H_co]):
    """Hidden states of consecutive tokens, `first` to before `stop`; older ones are forgotten."""

    @property
    def first(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def keep(self) -> None:
        """Starts keeping hidden states; a draft head will read them."""
        ...

    def get(self, start: int, stop: int) -> H_co:
        """Those of the tokens from `start` to before `stop`, which are there; until the next feed."""
        ...


@runtime_checkable
class GivesHidden(Protocol[H_co]):
    """A session that keeps hidden states of its newest tokens: what the model's head reads."""

    position: int

    @property
    def hidden(self) -> KeptHidden[H_co] | None:
        """None where its graph gives none."""
        ...


class GuessesOn(Protocol):
    """Logits behind which a head has guessed further tokens by itself."""

    def guesses(self) -> Sequence[tuple[int, float]]:
        """The tokens, one behind the other, and each one's probability in its logits. Waits for them."""
        ...


@runtime_checkable
class FeedsAsync(Protocol):
    """A session whose feed is awaited, where there are no threads: in a browser."""

    async def afeed(self, tokens: Sequence[int]) -> Logits:
        """As feed, without blocking the event loop.

        When the task is cancelled meanwhile, the feed is stopped and its end awaited before CancelledError goes on. The
        session stands where it stood before that feed.
        """
        ...


@runtime_checkable
class MovesState(Protocol):
    """A session whose KV can be taken out and put into another one, of this or another backend."""

    def export_state(self, start: int, stop: int) -> KeyValues:
        """Copies of the keys and values of the tokens from `start` to before `stop`.

        ValueError unless 0 <= start <= stop <= self.position.
        """
        ...

    def import_state(self, state: KeyValues) -> None:
        """Appends tokens that another session has computed.

        Raises ContextFull when they don't fit (nothing is appended), ValueError for the state of another model.
        """
        ...


@runtime_checkable
class PlacesImages(Protocol):
    """A session in which positions depend on the images among its tokens (M-RoPE: embedllm/backends/mrope.py)."""

    def put_images(self, place: int, tokens: Sequence[int]) -> None:
        """Says which tokens the KV from that place on is of; to be called after import_state().

        Raises ValueError for ids of an image that is not there.
        """
        ...


@runtime_checkable
class MovesStored(Protocol):
    """A session whose KV can be taken out as it is stored, which is less work, and often less memory, than floats.

    Other sessions of the same engine take it by import_state, and hold what this one holds then, bit for bit.
    """

    def export_stored(self, spans: Sequence[Span]) -> list[KeyValues]:
        """Copies of the KV of the tokens of each span, each in memory of its own.

        [kv heads, tokens, size] as export_state gives it; dtype and size are those of what is stored.
        ValueError as export_state.
        """
        ...


@runtime_checkable
class KeepsPrefixes(Protocol):
    """An engine whose stored KV stays in the device's own memory."""

    @property
    def prefix_bytes(self) -> int:
        """How much of that memory may be taken for it, unless the caller says so."""
        ...


@runtime_checkable
class Forgets(Protocol):
    """A session that frees the KV that its layers' windows no longer see.

    It can be rewound only to where all that they saw then is kept, and gives only KV away that is kept in all layers;
    else ValueError.
    """

    keeps_all: bool  # True: nothing more is freed

    def whole(self) -> int:
        """How many tokens at the beginning have all of their KV."""
        ...

    def back(self, position: int) -> int:
        """The last position at or before this one that it can be rewound to."""
        ...


@runtime_checkable
class KeepsStates(Protocol):
    """A session of a recurrent model. It goes back, and others take a prefix of it, where its states are kept."""

    @property
    def kv(self) -> MovesState | None:
        """What takes its keys and values out and in, which are of use with states only; None: neither can be moved."""
        ...

    @property
    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the states of one position, by name; float32 or smaller."""
        ...

    def kept(self) -> list[int]:
        """The positions whose states are kept, in order, but for 0; that of now is one, where its states are there."""
        ...

    def last_kept(self, position: int) -> int:
        """The last of these at or before a position, or 0: what is behind it is fed again after a rewind."""
        ...

    def prefer(self, positions: Iterable[int]) -> None:
        """Keep the states of these positions longer than those of others, once they are reached."""
        ...

    def worth_keeping(self, positions: Iterable[int], start: int, most: int) -> list[int]:
        """At most `most` of positions behind `start`, in order: the preferred, the last one, and others far apart."""
        ...

    def export_states(self, position: int) -> RecurrentStates:
        """Copies of the states of a position where they are kept, in the device's memory or the host's."""
        ...

    def import_prefix(self, tokens: Sequence[int], kv: Iterable[KeyValues], states: RecurrentStates) -> bool:
        """Appends tokens that another session has computed, with the states behind the last of them.

        Called where nothing is to be fed again. False: there was KV of fewer tokens, and nothing is appended. Raises
        as import_state.
        """
        ...


@runtime_checkable
class TakesAdapters(Protocol):
    """A session that computes with a low-rank adapter, where its engine was opened for that."""

    def adapt(self, adapter: Adapter | None) -> None:
        """Compute with this one from the next feed on; None: with the bare model.

        ValueError when tokens are held, or when the engine was not opened for adapters.
        """
        ...


@runtime_checkable
class Interruptible(Protocol):
    """A session whose running feed can be stopped from another thread."""

    def interrupt(self, stop: bool = True) -> None:
        """Make the running feed and every later one raise Interrupted, until interrupt(False)."""
        ...


@runtime_checkable
class Foresees(Protocol):
    """A session whose steps run ahead of the sampler, by guesses of its tokens."""

    def foresee(self, draws: Draws | None) -> None:
        """How the tokens that it will be fed are chosen, each from the latest row of logits; None: not known."""
        ...


class BatchRow(NamedTuple):
    """What one session is fed in a run of several."""

    session: Session
    tokens: Sequence[int]


@runtime_checkable
class RunsBatches(Protocol):
    """An engine that feeds several of its sessions in one run, which reads the weights once for all of them."""

    max_batch: int  # sessions in one run, at most; 1: none are fed together (exact mode, say)
    mixes_lengths: bool  # a run may hold rows of several tokens: pieces of prompts beside steps; else rows of one token
    prompt_budget: int  # tokens of prompts that one iteration may read beside the steps of 8 others or more

    def run_batch(self, rows: Sequence[BatchRow]) -> Sequence[Logits]:
        """Appends to each session its tokens; the logits after the last of each, valid until its next feed.

        1 to max_batch rows, each session once and of this engine, with room for its tokens in the context. A run is not
        interrupted. Raises DeviceError, and then has appended nothing to any of them.
        """
        ...


@runtime_checkable
class ReadsPrompts(RunsBatches, Protocol):
    """An engine that reads several prompts in one run, whose kernels it would launch for each of them else."""

    def read_prompts(self, rows: Sequence[BatchRow]) -> Sequence[Logits]:
        """As run_batch, of sessions that hold nothing, and of rows of two tokens or more. Lengths may differ."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """An engine whose first feeds cost more than later ones, unless they were made while it was loaded."""

    def warm_up(self) -> None:
        """Makes them: captures, plans, compiled shaders. Raises DeviceError."""
        ...


class ImageInput(Protocol):
    """An image as a vision encoder reads it, by the processor of a model."""

    @property
    def sha256(self) -> str:
        """Of the image's bytes and of the processor's settings, in hexadecimal: equal ones have equal features."""
        ...

    @property
    def tokens(self) -> int:
        """How many placeholder tokens stand for it in a prompt, those of all its tiles."""
        ...

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of its tokens, for models with M-RoPE; None where they have no such order."""
        ...

    @property
    def pixel_values(self) -> F32 | list[F32]:
        """[tiles, 3, height, width], as the processor normalizes them; a list where tiles differ in their sizes.

        Read only where features are computed.
        """
        ...


class VisionEncoder(Protocol):
    """The vision encoder and projector of a vision-language model on one device."""

    def encode(self, pixel_values: F32) -> F32:
        """The rows that take the place of a tile's placeholder embeddings, [tokens of a tile, hidden].

        pixel_values: [1, 3, height, width]. Raises ValueError for a tile of another size, DeviceError.
        """
        ...


class Engine(Protocol):
    """A loaded model on one device; opens sessions that share its weights.

    The methods of an engine and of its sessions are called from one thread, that of the device's engine loop
    (embedllm/generation/engine_loop.py); only Interruptible.interrupt comes from any.
    """

    device: Device
    chunk: int  # how many tokens of a prompt are best fed at once
    context: int  # most tokens that a session can hold
    remedy: str  # what gives more of them: "export with a larger --context"

    def open(self, capacity: int = 0) -> Session:
        """A new session with room for at least `capacity` tokens."""
        ...

    def close(self) -> None:
        """Free the weights. Its sessions must be closed before."""
        ...


def max_batch(engine: Engine) -> int:
    """How many sessions of an engine are fed in one run at most."""
    return engine.max_batch if isinstance(engine, RunsBatches) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """What an engine is opened with."""

    package: Package
    device: Device
    graph: Graph | None  # of the driver's variants, when it has any
    runtime: RuntimeOptions = DEFAULT
    exact: bool = False
    openvino: OpenVINOOptions | None = None
    kv: str | None = None  # of its driver's `kv`
    adapts: bool = False  # its sessions shall take adapters
    hidden_graph: str = ""  # and keep the hidden states that this variant gives, where not the graph says so

    def require_graph(self) -> Graph:
        """The graph of a device that has variants, for which there always is one."""
        assert self.graph is not None
        return self.graph
