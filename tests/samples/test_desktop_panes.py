"""The desktop sample's conversations, models, structured output and tools, through its widgets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.support.desktop_window import (
    QUESTION,
    Gate,
    Window,
    close,
    last_text,
    roles,
    say,
    type_and_send,
    wait_ready,
    wait_until,
)


def test_a_reopened_conversation_goes_on_where_it_was(opened: Callable[..., Window], tmp_path: Path) -> None:
    first = opened()
    wait_ready(first)
    reply = say(first)
    close(first)
    second = opened()
    wait_ready(second)
    listed = second.sidebar.list
    saved = [listed.topLevelItem(place) for place in range(listed.topLevelItemCount())]
    item = next(item for item in saved if item is not None and item.text(0) == QUESTION)
    listed.setCurrentItem(item)
    assert second.chat.transcript.texts() == [
        ("user", QUESTION),
        ("assistant", reply),
    ]  # before the thread did anything
    say(second, "list files by size")
    had, prompt = map(
        int, second.status.speed.text().split("after")[1].split("ms, ")[1].split(" prompt")[0].split(" of ")
    )
    assert 20 < had < prompt


def test_damaged_files_are_said_and_harm_nothing_else(opened: Callable[..., Window], tmp_path: Path) -> None:
    first = opened()
    wait_ready(first)
    say(first)
    close(first)
    folder = tmp_path / "conversations"
    (kv,) = folder.glob("*.safetensors")
    kv.write_bytes(b"no tensors")
    (folder / "odd.json").write_text("{")
    second = opened()
    wait_ready(second)
    wait_until(second.banner.text, "what is said of the damaged file")
    assert "odd.json" in second.banner.text()
    assert (folder / "odd.json").read_text() == "{"
    second.sidebar.choose(kv.stem)
    say(second, "list files by size")
    assert roles(second) == ["user", "assistant", "user", "assistant"]


def test_conversations_are_begun_named_and_deleted(window: Window, tmp_path: Path) -> None:
    say(window)
    first = window.chat.shown.id
    window.sidebar.new.click()
    window.sidebar.new.click()  # the empty one serves again
    assert window.sidebar.list.topLevelItemCount() == 2
    assert not window.chat.transcript.texts()
    say(window, "list files by size")
    window.sidebar.choose(first)
    window.sidebar.rename.click()
    editor = QApplication.focusWidget()
    assert editor is not None
    QTest.keyClicks(editor, "Archives")
    QTest.keyClick(editor, Qt.Key.Key_Return)
    file = tmp_path / "conversations" / f"{first}.json"
    wait_until(lambda: json.loads(file.read_text())["title"] == "Archives", "the new title in the file")
    say(window, "and a zip file?")
    assert json.loads(file.read_text())["title"] == "Archives" == window.sidebar.current().title
    window.sidebar.delete.click()
    assert "Archives" in window.banner.text()
    assert file.exists()
    window.banner.action.click()
    wait_until(lambda: not file.exists(), "the file deleted")
    assert window.chat.transcript.texts()[0] == ("user", "list files by size")


def test_a_conversation_may_be_deleted_during_its_reply(window: Window, gate: Gate, tmp_path: Path) -> None:
    type_and_send(window, QUESTION)
    wait_until(lambda: last_text(window), "the first piece")
    window.sidebar.delete.click()
    assert not window.chat.transcript.texts()
    wait_ready(window)
    gate.open.set()
    assert "ls" in say(window, "show hidden files")
    assert len(list((tmp_path / "conversations").glob("*.json"))) == 1


def test_a_reply_goes_to_its_own_conversation_when_another_is_opened(window: Window, gate: Gate) -> None:
    type_and_send(window, QUESTION)
    wait_until(lambda: last_text(window), "the first piece")
    left = window.chat.shown.id
    window.sidebar.new.click()
    gate.open.set()
    wait_ready(window)
    assert window.chat.shown.id != left
    assert not window.chat.transcript.texts()
    window.sidebar.choose(left)
    assert roles(window) == ["user", "assistant"]  # what had come until then


def test_the_structured_pane_gives_json_of_the_schema(window: Window) -> None:
    pane = window.structured
    pane.run.click()
    wait_until(pane.run.isEnabled, "the reply")
    value = json.loads(pane.result.toPlainText())
    assert set(value) == {"name", "city", "age"}
    assert isinstance(value["age"], int)
    assert pane.state.text().startswith("Fulfils the schema")


@pytest.mark.parametrize(
    ("schema", "said"),
    [("{", "the schema is no JSON"), ("[]", "expected a JSON object"), ('{"type": "no such"}', "type")],
)
def test_a_wrong_schema_is_said(window: Window, schema: str, said: str) -> None:
    window.structured.schema.setPlainText(schema)
    window.structured.run.click()
    wait_until(window.banner.text, "the error")
    assert said in window.banner.text()
    wait_ready(window)


def test_a_tool_runs_once_it_is_allowed(window: Window) -> None:
    pane = window.tools
    window.tabs.setCurrentWidget(pane)
    pane.run.click()
    wait_until(pane.allow.isVisible, "the question")
    assert "calculator(expression='342 * 61')" in pane.call.text()
    assert "20862" not in pane.log.toPlainText()
    pane.allow.click()
    wait_until(pane.run.isEnabled, "the answer")
    assert "→ 20862" in pane.log.toPlainText()
    assert not pane.allow.isVisible()


def test_a_declined_tool_does_not_run(window: Window) -> None:
    pane = window.tools
    window.tabs.setCurrentWidget(pane)
    pane.run.click()
    for _ in range(5):  # the model may ask again
        wait_until(lambda: pane.allow.isVisible() or pane.run.isEnabled(), "a question or the end")
        pane.decline.click()
    wait_until(pane.run.isEnabled, "the answer")
    assert "declined" in pane.log.toPlainText()
    assert "→ 20862" not in pane.log.toPlainText()


def test_a_question_that_is_stopped_is_a_no(window: Window) -> None:
    window.tabs.setCurrentWidget(window.tools)
    window.tools.run.click()
    wait_until(window.tools.allow.isVisible, "the question")
    window.tools.stop.click()
    wait_until(window.tools.run.isEnabled, "the end")
    assert "declined" in window.tools.log.toPlainText()
    assert not window.tools.allow.isVisible()


def test_a_model_that_cannot_be_loaded_is_said_and_another_can_be_chosen(window: Window, tmp_path: Path) -> None:
    say(window)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "embedllm.json").write_text("{}")
    window.picker.choose(str(tmp_path / "damaged" / "embedllm.json"))  # the file or its folder
    wait_until(window.banner.text, "the error")
    assert "damaged" in window.banner.text()
    assert not window.chat.send.isEnabled()
    assert "no model" in window.status.device.text()
    window.picker.models.setCurrentIndex(0)
    window.picker.models.activated.emit(0)
    wait_ready(window)
    say(window, "list files by size")
    assert roles(window) == ["user", "assistant", "user", "assistant"]


def test_a_device_that_is_not_there_is_said(opened: Callable[..., Window]) -> None:
    window = opened(device="nothing")
    wait_until(window.banner.text, "the error")
    assert "nothing" in window.banner.text()
    assert "no model" in window.status.device.text()
    wait_until(lambda: window.picker.devices.count() > 2, "the devices")
    assert window.picker.device() == "nothing"


def test_settings_are_remembered(opened: Callable[..., Window], tmp_path: Path) -> None:
    first = opened()
    wait_ready(first)
    first.resize(790, 600)  # the screen without a display is small
    first.picker.choose(str(tmp_path / "model of mine"))
    close(first)
    second = opened(model="", device="")
    assert second.picker.model() == str(tmp_path / "model of mine")
    assert second.picker.device() == "cpu"
    assert second.size() == first.size()
