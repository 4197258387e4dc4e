"""The desktop sample's transcript: replies in Markdown, what "Copy" gives, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QFont, QGuiApplication, QPalette, QTextCursor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from embedllm.export import Progress
from samples.desktop import theme
from samples.desktop.picker import AUTO, DEMO, Picker
from samples.desktop.status import Status
from samples.desktop.transcript import Transcript

REPLY = """## Steps
A **bold word**, `ls *.py`, [docs](https://x.y/z) and find . -name "*.py" -o -name "*.md".
- one
  - two **open
1. three
> said

```python
def f(x):
    return x ** 2 ** x
```
# the largest files
| a | b |
"""
SHOWN = """Steps
A bold word, `ls *.py`, docs (https://x.y/z) and find . -name "*.py" -o -name "*.md".
•  one
•  two **open
1.  three
said

python   Copy
def f(x):
    return x ** 2 ** x
# the largest files
| a | b |
"""


def transcript_of(pieces: Sequence[str]) -> Transcript:
    found = Transcript()
    found.add("assistant")
    for piece in pieces:
        found.append_text(piece)
    return found


def shown(pieces: Sequence[str]) -> str:
    return transcript_of(pieces).toPlainText().partition("Copy\n")[2].rstrip() + "\n"


def test_a_reply_is_shown_as_markdown_and_commands_as_they_are(application: QApplication) -> None:
    assert shown([REPLY]) == SHOWN


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(cuts=st.lists(st.integers(1, len(REPLY) - 1), max_size=20))
def test_the_pieces_that_it_comes_in_make_no_difference(application: QApplication, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(REPLY)]
    pieces = [REPLY[start:stop] for start, stop in pairwise(places)]
    assert transcript_of(pieces).toHtml() == transcript_of([REPLY]).toHtml()


def test_bold_and_code_have_their_fonts(application: QApplication) -> None:
    transcript = transcript_of([REPLY])
    cursor = transcript.document().find("bold word")
    assert cursor.charFormat().fontWeight() == QFont.Weight.Bold
    code, text = (transcript.document().find(part).charFormat() for part in ("return x", "three"))
    assert code.fontFamilies() != text.fontFamilies()


def test_copy_gives_the_text_of_the_model_or_the_code_of_one_block(application: QApplication) -> None:
    transcript = transcript_of([REPLY])
    transcript.add("user", "**typed**")
    copied: list[str] = []
    transcript.copied.connect(copied.append)
    for link in ("copy:0", "copy:0/0", "copy:1", "https://x.y/z"):
        transcript.copy_link(link)
    assert copied == [REPLY, "def f(x):\n    return x ** 2 ** x", "**typed**"]
    assert QGuiApplication.clipboard().text() == "**typed**"


def test_a_click_on_copy_copies(application: QApplication) -> None:
    transcript = transcript_of([REPLY])
    transcript.resize(600, 500)
    transcript.show()
    first = transcript.document().find("Copy")
    code = transcript.document().find("Copy", first)
    for cursor, text in ((first, REPLY), (code, "def f(x):\n    return x ** 2 ** x")):
        begin = QTextCursor(cursor)
        begin.setPosition(cursor.selectionStart() + 1)
        place = transcript.cursorRect(begin).center() + QPoint(2, 0)
        assert transcript.anchorAt(place).startswith("copy:0")
        QTest.mouseClick(transcript.viewport(), Qt.MouseButton.LeftButton, pos=place)
        assert QGuiApplication.clipboard().text() == text
    transcript.close()


@pytest.mark.parametrize(("name", "is_dark"), [(theme.LIGHT, False), (theme.DARK, True), ("unknown", None)])
def test_a_theme_is_readable(application: QApplication, name: str, is_dark: bool | None) -> None:
    before, sheet = application.palette(), application.styleSheet()
    try:
        theme.apply(application, name)
        palette = application.palette()
        for ground, text in (("Base", "Text"), ("Window", "WindowText"), ("Button", "ButtonText")):
            roles = QPalette.ColorRole
            light, dark = (palette.color(getattr(roles, role)).lightness() for role in (ground, text))
            assert abs(light - dark) > 150
            assert is_dark is None or (light < dark) == is_dark
    finally:
        application.setPalette(before)
        application.setStyleSheet(sheet)


def test_the_picker_takes_gguf_files_and_names_of_the_hub(application: QApplication, tmp_path: Path) -> None:
    picker = Picker()
    picker.show_models([], DEMO)
    picker.show_devices((), AUTO)
    chosen: list[tuple[str, str]] = []
    picker.chosen.connect(lambda model, device: chosen.append((model, device)))
    file = tmp_path / "model.Q4_0.gguf"
    file.touch()
    for path in (str(file), "org/name", str(tmp_path / "folder" / "embedllm.json")):
        picker.choose(path)
    assert [model for model, _ in chosen] == [str(file), "org/name", str(tmp_path / "folder")]
    labels = [picker.models.itemText(place) for place in range(picker.models.count())]
    assert labels[1:3] == ["model.Q4_0.gguf", "org/name"]
    assert picker.folders() == [model for model, _ in chosen]


def test_a_download_is_seen_in_the_status_line(application: QApplication) -> None:
    status = Status()
    status.show_loading("org/name")
    assert status.progress.maximum() == 0  # how long it takes is not known
    status.show_progress(Progress("download", 100_000_000, 400_000_000))
    assert (status.device.text(), status.progress.value()) == ("downloading 400 MB…", 25)
    status.show_loading("demo")
    assert status.progress.maximum() == 0
