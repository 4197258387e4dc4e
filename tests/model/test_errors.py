"""What errors carry, and that it survives the way to another process."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from embedllm import errors
from embedllm.errors import Busy, ContextFull, DeviceUnavailable, EmbedError, UnsupportedModel

EXAMPLES = {
    DeviceUnavailable: DeviceUnavailable("none", [("cpu", "no graph", "export again")]),
    ContextFull: ContextFull("too long", tokens=9, limit=8),
    Busy: Busy("full", running=3, waiting=2),
    UnsupportedModel: UnsupportedModel("unknown", model_type="bert"),
}
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EmbedError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling_and_copying(kind: type[EmbedError]) -> None:
    error = EXAMPLES.get(kind) or kind("what failed")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_numbers_and_names_can_be_read_from_the_error() -> None:
    full = EXAMPLES[ContextFull]
    assert isinstance(full, ContextFull)
    assert (full.tokens, full.limit) == (9, 8)
    assert UnsupportedModel("unknown").model_type == ""
