"""Vision encoders: what makes rows for the decoder of an image."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """A vision transformer (ViT) and its projector: of each tile of an image, rows that take the place of embeddings.

    x = patches(tile) + positions; layers; norm; pooling; pixel shuffle; projector_norm; projector. Tokens of a tile all
    see each other, and nothing of other tiles. Source: SigLIP (Zhai et al. 2023); pixel shuffle: Idefics3 (Laurencon et
    al. 2024); pooling, and attention in both directions: Gemma 3 (Gemma Team 2025). With a class token
    (InternViT, Chen et al. 2023) x = [class token, patches(tile)] + positions; it is left out behind the layers.
    """

    image_token: int  # the placeholder that prompts have, once for each row
    image_size: int  # pixels; the side of a tile
    patch_size: int  # pixels; the side of a patch
    patches: str  # the source's convolution: patches.weight [hidden, 3, patch_size, patch_size], patches.bias
    positions: Linear  # learned, [patches of a tile, hidden], row by row; in front of them that of a class token
    layers: tuple[Layer, ...]
    norm: Norm | None
    pixel_shuffle: int  # that many patches in both directions become one row, side by side
    projector: Linear  # [the decoder's hidden, hidden * pixel_shuffle**2]
    pooling: int = 1  # that many patches in both directions become their mean
    projector_norm: Norm | None = None  # of what the projector reads
    bidirectional: bool = False  # in the decoder, the tokens of an image all see each other, within a layer's window
    class_token: str = ""  # the tensor in the source, [hidden]; empty: there is none
    projector_up: Linear | None = None  # the projector is projector(gelu(projector_up(x)))

    @property
    def hidden(self) -> int:
        return self.positions.columns

    @property
    def projector_matrices(self) -> tuple[Linear, ...]:
        """In the order in which they are multiplied by."""
        return (self.projector,) if self.projector_up is None else (self.projector_up, self.projector)

    @property
    def grid(self) -> int:
        """Patches along the side of a tile."""
        return self.image_size // self.patch_size

    @property
    def tile_tokens(self) -> int:
        """Rows that a tile becomes."""
        return (self.grid // self.pooling // self.pixel_shuffle) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchMerger:
    """Patches of a square, row by row and side by side, as one row: down(gelu(up(norm(square)))).

    square_norm (LFM2-VL): up(square_norm(norm(square))), whose norm is of each patch. projector_norm (PaddleOCR-VL):
    up(projector_norm(norm(square))), of which both norms are of each patch.
    up_norm, gate and gated_up (GLM-OCR): x = gelu(up_norm(up(...))); down(silu(gate(x)) * gated_up(x)).
    merging (Mistral 3): up(merging(channels)), where channels has the first value of each patch, the second of each ...
    """

    norm: Norm  # of each patch, or of all values of a square where its size says so
    up: Linear
    down: Linear
    merging: Linear | None = None
    square_norm: Norm | None = None  # of all values of a square
    projector_norm: Norm | None = None  # of each patch, after `norm`, which is of a patch, too
    up_norm: Norm | None = None  # of what `up` gives
    gate: Linear | None = None  # with `gated_up`
    gated_up: Linear | None = None

    @property
    def norms(self) -> tuple[Norm, ...]:
        """In the order in which they are applied."""
        norms = (self.norm, self.projector_norm, self.square_norm, self.up_norm)
        return tuple(each for each in norms if each is not None)

    @property
    def square(self) -> int:
        """Values of the patches of a square together."""
        return (self.merging or self.up).columns

    @property
    def matrices(self) -> tuple[Linear, ...]:
        """In the order in which they are multiplied by."""
        matrices = (self.merging, self.up, self.gate, self.gated_up, self.down)
        return tuple(each for each in matrices if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPooler:
    """Patches of a square as one row (Gemma 4): projector(norm(multiplier * their mean)).

    standardize: the source's tensors standardize.std_bias and .std_scale, [hidden]: what is normed is
    (multiplier * mean - std_bias) * std_scale; empty: multiplier * mean.
    """

    norm: Norm
    projector: Linear
    multiplier: float
    standardize: str = ""

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (self.norm,)

    @property
    def matrices(self) -> tuple[Linear, ...]:
        """In the order in which they are multiplied by."""
        return (self.projector,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepStack:
    """Features of an earlier layer (DeepStack, Meng et al. 2024), added to the stream behind a layer of the decoder."""

    layer: int  # of the encoder, whose output it reads; the place in the tuple is the layer of the decoder
    merger: PatchMerger


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicVision:
    """A vision transformer of images of any size ("naive dynamic resolution", Qwen2-VL, Wang et al. 2024).

    x = positions_norm(patches_norm(patches(pixels_norm(image))) + positions); layers with 2-D RoPE or without, or none
    at all (Gemma 4 12B); merger. Norms that are None are left out. Rows of the result are side by side, [rows, hidden *
    (1 + deepstack)]. Patches are ordered by the squares that are merged; all see all, or those of their window only.
    2-D RoPE: the first half of a head's pairs is rotated by the patch's row, the second by its column; the other way
    round where `rope_column_first`. Without: SigLIP 2's NaFlex (Tschannen et al. 2025).
    """

    image_token: int  # the placeholder that prompts have, once for each row
    patch_size: int  # pixels; the side of a patch
    temporal_patch_size: int  # images that a patch covers: the same one several times
    merge_size: int  # patches along the side of a square that becomes a row
    patches: str  # the source's convolution: [hidden, 3, temporal_patch_size, patch_size, patch_size]
    patches_bias: bool
    rope_base: float  # 0: layers have no RoPE
    # learned, of a square grid of patches, row by row; interpolated bilinearly, corners on corners. Where
    # `positions_by_axis`: a half of the rows is of columns, the other of rows; both of a patch are added
    positions: Linear | None
    layers: tuple[Layer, ...]
    merger: PatchMerger | PatchPooler
    pixels_norm: Norm | None = None  # of all values of a patch, where patches_channels_last
    patches_norm: Norm | None = None
    positions_norm: Norm | None = None
    patches_channels_last: bool = False  # the source's convolution is a matrix [hidden, patch_size * patch_size * 3]
    patches_are_flat: bool = False  # it is a matrix with the values in the order of a convolution (LFM3-VL)
    positions_on_edges: bool = False  # the grids of positions and patches lie edges on edges (PaddleOCR-VL)
    antialias: bool = False  # positions are resized as an image is, edges on edges: to fewer by wider kernels
    # frequencies of rows and columns alternate in one series (Pixtral, Agrawal et al. 2024); else both have the same
    rope_interleaved: bool = False
    window: int = 0  # squares along the side of a window; 0: there are none
    full_layers: tuple[int, ...] = ()  # with windows: layers whose patches see all others
    deepstack: tuple[DeepStack, ...] = ()
    rope_column_first: bool = False
    positions_by_axis: bool = False
    # in the decoder, the tokens of an image all see each other in layers that have a window, within that
    bidirectional_in_windows: bool = False

    @property
    def hidden(self) -> int:
        return self.merger.norm.size if isinstance(self.merger, PatchPooler) else self.layers[0].attention.o.rows

    @property
    def head_dim(self) -> int:
        return next(mixer.head_dim for layer in self.layers if isinstance(mixer := layer.attention, Attention))

    @property
    def factor(self) -> int:
        """Pixels that the sides of an image are multiples of."""
        return self.patch_size * self.merge_size

    @property
    def has_rope(self) -> bool:
        return self.rope_base > 0

    @property
    def mergers(self) -> tuple[PatchMerger | PatchPooler, ...]:
        """In the order of their features."""
        return (self.merger, *(each.merger for each in self.deepstack))

    @property
    def positions_side(self) -> int:
        """The most patches along a side, where positions are by axis."""
        assert self.positions is not None
        return self.positions.rows // 2

    def has_windows(self, index: int) -> bool:
        """Whether patches in layer `index` see those of their window only."""
        return self.window > 0 and index not in self.full_layers
