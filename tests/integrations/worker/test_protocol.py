"""Lines and messages of the worker, without a process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.errors import ContextFull, DeviceUnavailable, PackageError
from embedllm.integrations.worker.protocol import RpcError, SkippedLine, encode, error_message, lines, parse


def in_pieces(pieces: Sequence[bytes]) -> Iterator[bytes]:
    yield from pieces
    yield b""


@given(st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"0123456789"]), max_size=5).map(b"".join)))
def test_pieces_don_t_matter_for_the_lines(pieces: list[bytes]) -> None:
    pieces = [piece for piece in pieces if piece]
    expected = b"".join(pieces).split(b"\n")
    expected = expected[:-1] if expected[-1] == b"" else expected
    source = in_pieces(pieces)
    found = [line if isinstance(line, bytes) else None for line in lines(lambda _: next(source), limit=8)]
    assert found == [line if len(line) <= 8 else None for line in expected]


def test_a_line_that_is_too_long_is_not_kept() -> None:
    asked: list[int] = []

    def read(size: int) -> bytes:
        asked.append(size)
        return b"x" * size if len(asked) < 1000 else b""

    (line,) = lines(read, limit=1000)
    assert isinstance(line, SkippedLine)
    assert len(line.start) < 1000


@pytest.mark.parametrize(
    ("start", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"chat",', 7),
        (b'\xef\xbb\xbf { "id" : "a-7" , "jsonrpc" : "2.0",', "a-7"),
        (b'{"jsonrpc":"2.0","method":"chat","params":{"id":7,', None),
        (b'{"jsonrpc":"2.0","id":7.5,', None),
        (b'{"jsonrpc":"2.0","id":"\\ud83d",', None),
    ],
)
def test_a_message_that_is_not_read_as_a_whole_is_answered_by_the_id_at_its_start(start: bytes, id: int | str) -> None:
    (line,) = lines(io.BytesIO(start + b" " * 1000).read, limit=999)
    assert isinstance(line, SkippedLine)
    assert (line.error.code, line.error.id) == (-32012, id)
    with pytest.raises(RpcError) as raised:
        parse(start + b'"a":' + b"[" * 100_000)
    assert (raised.value.code, raised.value.id) == (-32700, id)


@given(st.text(), st.integers() | st.text())
def test_a_message_is_one_line_of_ascii(text: str, id: int | str) -> None:
    line = encode({"id": id, "result": text})
    assert line.isascii()
    assert list(lines(io.BytesIO(line).read)) == [line[:-1]]
    assert json.loads(line) == {"jsonrpc": "2.0", "id": id, "result": text}


@given(st.binary())
def test_parse_gives_a_call_or_an_rpc_error(line: bytes) -> None:
    try:
        parse(line)
    except RpcError as error:
        assert error.code in (-32700, -32600, -32602)  # noqa: PT017  # either outcome is right


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "9" * 5000, '"half of a pair: \\ud83d"'])
@pytest.mark.parametrize("id", [7, "seven"])
def test_an_error_in_a_value_answers_the_id_beside_it(value: str, id: int | str) -> None:
    line = f'{{"jsonrpc":"2.0","method":"chat","params":{{"a":[{value}]}},"id":{json.dumps(id)}}}'
    with pytest.raises(RpcError) as caught:
        parse(line.encode())
    assert (caught.value.code, caught.value.id) == (-32700, id)


@pytest.mark.parametrize("id", ["NaN", "9" * 5000, '"\\ud83d"', "true", "[]"])
def test_an_id_that_is_none_itself_is_not_echoed(id: str) -> None:
    with pytest.raises(RpcError) as caught:
        parse(f'{{"jsonrpc":"2.0","method":"chat","id":{id}}}'.encode())
    assert caught.value.id is None


@pytest.mark.parametrize("params", ["", ',"params":null', ',"params":{}'])
def test_params_may_be_left_out_or_null(params: str) -> None:
    call = parse(f'{{"jsonrpc":"2.0","id":1,"method":"devices"{params}}}'.encode())
    assert call.params == {}


@pytest.mark.parametrize(
    ("error", "code", "data"),
    [
        (PackageError("p"), -32001, {"kind": "PackageError"}),
        (
            DeviceUnavailable("d", [("npu", "none here", "buy one")]),
            -32002,
            {"kind": "DeviceUnavailable",
             "tried": [{"device": "npu", "reason": "none here", "remedy": "buy one"}]},
        ),
        (ContextFull("c", tokens=5, limit=4), -32004, {"kind": "ContextFull", "tokens": 5, "limit": 4}),
        (FileNotFoundError("f"), -32000, {"kind": "FileNotFoundError"}),
        (ZeroDivisionError("z"), -32603, {"kind": "ZeroDivisionError"}),
    ],
)  # fmt: skip
def test_each_error_has_its_code(error: Exception, code: int, data: dict[str, object]) -> None:
    assert error_message(error, 1) == {"id": 1, "error": {"code": code, "message": str(error), "data": data}}
