"""Values of the switches in the environment, and what is said of others."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from embedllm.files.switches import switch
from embedllm.files.user_cache import user_cache

NAME = "EMBEDLLM_TEST_SWITCH"


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("on", "on"),
        (" ON", "on"),
        ("1", "on"),
        ("True", "on"),
        ("off", "off"),
        ("Off ", "off"),
        ("0", "off"),
        ("no", "off"),
        ("false", "off"),
        (" Greedy", "greedy"),
        ("", ""),
        ("  ", ""),
    ],
)
def test_case_and_blanks_do_not_matter(
    value: str, meaning: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(NAME, value)
    assert switch(NAME, "greedy") == meaning
    assert caplog.records == []


def test_a_switch_that_is_not_set_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    assert switch(NAME) == ""


def test_another_value_is_warned_of_once_with_the_values_that_there_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(NAME, "of")
    with caplog.at_level(logging.WARNING, logger="embedllm"):
        assert [switch(NAME, "greedy"), switch(NAME, "greedy")] == ["", ""]
    assert [record.getMessage() for record in caplog.records] == [
        f"{NAME} is 'of', which changes nothing; expected one of on, 1, true, yes, off, 0, false, no, greedy"
    ]


def test_what_is_cached_lies_below_one_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name, **_: tmp_path / name)
    assert user_cache() == tmp_path / "embedllm"
    assert user_cache("probes", "a.json") == tmp_path / "embedllm" / "probes" / "a.json"
