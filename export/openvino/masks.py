"""The masks of attention in an OpenVINO model: which keys a query sees."""

from __future__ import annotations

from collections.abc import Sequence

from embedllm.export.openvino.ir import BROADCAST, Ir, Value

_TO_END = (1 << 63) - 1
_HIDDEN_SCORE = -65504.0  # the smallest float16: what a hidden key's score is lowered by


def masks(
    ir: Ir,
    mask: Value,
    positions: Value,
    length: Value,
    windows: Sequence[int | None],
    chunks: Sequence[int],
    *,
    image_blocks: Value | None = None,
    in_windows_only: bool = False,
) -> tuple[dict[int | None, Value], dict[int, Value]]:
    """What is added to the scores, [B, 1, T, past + T], by window and by chunk: 0, or much less for what is hidden.

    image_blocks: i64 [B, T], a number above 0 for tokens that see those of the same number, later ones too;
    `in_windows_only`: where there is a window, and only there.
    """
    total = ir.op("Squeeze", [ir.size(mask, 1, "total"), ir.constant(0)], "total.number")
    number = ir.op("Squeeze", [length, ir.constant(0)], "length.number")
    past = ir.op("Subtract", [total, number], "past.number", **BROADCAST)
    one = ir.constant(1)
    keys = ir.op("Range", [ir.constant(0), total, one], "keys", output_type="i64")
    queries = ir.op("Range", [past, total, one], "queries.flat", output_type="i64")
    queries = ir.op("Unsqueeze", [queries, one], "queries")  # [T, 1]
    earlier = ir.op("LessEqual", [keys, queries], "earlier", type="boolean", **BROADCAST)
    before = earlier  # of attention without a window
    if image_blocks is not None:
        same = _same_block(ir, image_blocks, past)
        earlier = ir.op("LogicalOr", [earlier, same], "earlier.or_same_block", **BROADCAST)
        before = before if in_windows_only else earlier
    is_token = ir.op("NotEqual", [mask, ir.constant(0)], "given.flat", type="boolean", **BROADCAST)
    is_token = ir.op("Unsqueeze", [is_token, ir.constant([1, 2])], "given")  # [B, 1, 1, total]
    by_window: dict[int | None, Value] = {}
    for window in windows:
        if window is None:
            both = ir.op("LogicalAnd", [before, is_token], "mask.both", **BROADCAST)
            by_window[window] = ir.op("Select", [both, *_scores(ir)], "mask", type="f32", **BROADCAST)
        else:
            by_window[window] = _window_mask(ir, mask, positions, window, (earlier, is_token))
    return by_window, {
        chunk: _chunk_mask(ir, mask, positions, chunk, (earlier, is_token)) for chunk in dict.fromkeys(chunks)
    }


def _same_block(ir: Ir, blocks: Value, past: Value) -> Value:
    """Which queries and keys have the same number, [B, 1, T, past + T]; those of before have none."""
    none = ir.op("Unsqueeze", [past, ir.constant(0)], "image_block.past")
    pads = [ir.op("Concat", [ir.constant([0]), none], "image_block.pads", axis=0), ir.constant([0, 0]), ir.constant(0)]
    of_keys = ir.op("Pad", [blocks, *pads], "image_block.keys.flat", pad_mode="constant")
    of_query = ir.op("Unsqueeze", [blocks, ir.constant([1, 3])], "image_block.queries")
    of_key = ir.op("Unsqueeze", [of_keys, ir.constant([1, 2])], "image_block.keys")
    same = ir.op("Equal", [of_query, of_key], "image_block.same", type="boolean", **BROADCAST)
    is_any = ir.op("Greater", [of_query, ir.constant(0)], "image_block.any", type="boolean", **BROADCAST)
    return ir.op("LogicalAnd", [same, is_any], "image_block", **BROADCAST)


def _chunk_mask(ir: Ir, mask: Value, positions: Value, chunk: int, others: tuple[Value, Value]) -> Value:
    """The mask of attention within chunks of tokens, and of them what all of `others` let through."""
    name, size = f"mask.chunk.{chunk}", ir.constant(chunk)
    query_at, key_at = _places(ir, mask, positions, name)
    of_query, of_key = (
        ir.op("Divide", [at, size], f"{name}.of_{part}", m_pythondiv=True, **BROADCAST)
        for part, at in (("query", query_at), ("key", key_at))
    )
    same = ir.op("Equal", [of_query, of_key], f"{name}.same", type="boolean", **BROADCAST)
    both = ir.op("LogicalAnd", list(others), f"{name}.others", **BROADCAST)
    is_visible = ir.op("LogicalAnd", [both, same], f"{name}.seen", **BROADCAST)
    return ir.op("Select", [is_visible, *_scores(ir)], name, type="f32", **BROADCAST)


def _places(ir: Ir, mask: Value, positions: Value, name: str) -> tuple[Value, Value]:
    """The positions of queries [B, 1, T, 1] and of keys [B, 1, 1, total]."""
    query_at = ir.op("Unsqueeze", [positions, ir.constant([1, 3])], f"{name}.queries")
    count = ir.op("CumSum", [mask, ir.constant(1)], f"{name}.count", exclusive=False, reverse=False)
    flat = ir.op("Subtract", [count, ir.constant(1)], f"{name}.keys.flat", **BROADCAST)
    return query_at, ir.op("Unsqueeze", [flat, ir.constant([1, 2])], f"{name}.keys")


def _window_mask(ir: Ir, mask: Value, positions: Value, window: int, others: Sequence[Value]) -> Value:
    """The mask of attention that sees the newest `window` tokens, and of them what all of `others` let through.

    By positions, not by places: the NPU's decoding model has a gap between what is held and what is new. In just
    this form, because openvino-genai's default backend drops the mask and looks for it to find the window
    (tests/export/openvino/test_genai_peer.py).
    """
    name = f"mask.window.{window}"
    query_at, key_at = _places(ir, mask, positions, name)
    oldest = ir.op("Add", [query_at, ir.constant(-window)], f"{name}.oldest", **BROADCAST)
    near = ir.op("Greater", [key_at, oldest], f"{name}.near", type="boolean", **BROADCAST)
    yes = ir.constant(1, "boolean")
    is_visible = ir.op("BitwiseAnd", [yes, near], f"{name}.and.0", **BROADCAST)
    for at, other in enumerate((yes, *others), 1):
        pair = [other, is_visible] if at == 2 else [is_visible, other]
        is_visible = ir.op("BitwiseAnd", pair, f"{name}.and.{at}", **BROADCAST)
    shape = ir.op("ShapeOf", [is_visible], f"{name}.shape", type="i64", output_type="i64")
    broadcast = ir.op("Broadcast", [is_visible, shape], f"{name}.broadcast", mode="numpy")
    scores = ir.op("Select", [broadcast, *_scores(ir)], f"{name}.scores", type="f32", **BROADCAST)
    bounds = [ir.constant([value]) for value in (0, _TO_END, 1, 3)]
    return ir.op("Slice", [scores, *bounds], name)


def _scores(ir: Ir) -> list[Value]:
    """Of a key that is seen, and of one that is hidden."""
    return [ir.constant(0.0, "f32"), ir.constant(_HIDDEN_SCORE, "f32")]
