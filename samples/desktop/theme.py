"""Light, dark, or as the system has it: palettes of Qt's own style, which every widget follows."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

SYSTEM, LIGHT, DARK = "system", "light", "dark"
NAMES = {SYSTEM: "As the system", LIGHT: "Light", DARK: "Dark"}
_ROLES = QPalette.ColorRole
_COLOURS = {
    LIGHT: {
        "Window": "#f6f7f9", "WindowText": "#1b1d21", "Base": "#ffffff", "AlternateBase": "#eef1f6", "Text": "#1b1d21",
        "Button": "#ffffff", "ButtonText": "#1b1d21", "Highlight": "#2f6fde", "HighlightedText": "#ffffff",
        "ToolTipBase": "#1b1d21", "ToolTipText": "#ffffff", "PlaceholderText": "#7b818c", "Link": "#2f6fde",
        "Mid": "#d4d8df", "Accent": "#2f6fde",
    },
    DARK: {
        "Window": "#1b1d21", "WindowText": "#e6e8eb", "Base": "#212429", "AlternateBase": "#2a2e35", "Text": "#e6e8eb",
        "Button": "#2a2e35", "ButtonText": "#e6e8eb", "Highlight": "#5b93f5", "HighlightedText": "#10131a",
        "ToolTipBase": "#e6e8eb", "ToolTipText": "#1b1d21", "PlaceholderText": "#8b919c", "Link": "#7fabf7",
        "Mid": "#3a3f48", "Accent": "#5b93f5",
    },
}  # fmt: skip
_DISABLED = 0.45  # of the text's colour, the rest is the window's
_SHEET = """
QPushButton, QToolButton {{
    border: 1px solid {Mid}; border-radius: 6px; padding: 4px 12px; background: {Button}; color: {ButtonText};
}}
QPushButton:hover, QToolButton:hover {{ border-color: {Accent}; }}
QPushButton:disabled, QToolButton:disabled {{ color: {PlaceholderText}; }}
QPushButton#primary:enabled {{ background: {Accent}; color: {HighlightedText}; border-color: {Accent}; }}
QTabBar {{ qproperty-drawBase: 0; }}
QTabWidget::pane {{ border: none; }}
QTabBar::tab {{ padding: 6px 14px; border: none; border-bottom: 2px solid transparent; color: {PlaceholderText}; }}
QTabBar::tab:selected {{ border-bottom-color: {Accent}; color: {WindowText}; }}
QTabBar::tab:focus {{ color: {Accent}; }}
QToolButton::menu-indicator {{ image: none; }}
QPlainTextEdit, QLineEdit {{
    border: 1px solid {Mid}; border-radius: 8px; padding: 4px; background: {Base}; color: {Text};
}}
QPlainTextEdit:focus, QLineEdit:focus {{ border-color: {Accent}; }}
QTreeWidget {{ border: none; border-radius: 8px; background: {Base}; color: {Text}; }}
QStatusBar::item {{ border: none; }}
"""


def apply(application: QApplication, name: str) -> None:
    """name: SYSTEM, LIGHT or DARK; any other is SYSTEM."""
    chosen = name if name in _COLOURS else _of_the_system()
    colours = _COLOURS[chosen]
    application.setStyle("Fusion")
    application.setPalette(_palette(chosen))
    application.setStyleSheet(_SHEET.format(**colours))


def _of_the_system() -> str:
    return DARK if QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark else LIGHT


def _palette(name: str) -> QPalette:
    palette = QPalette()
    for role, colour in _COLOURS[name].items():
        palette.setColor(getattr(_ROLES, role), QColor(colour))
    window = QColor(_COLOURS[name]["Window"])
    for role in (_ROLES.Text, _ROLES.WindowText, _ROLES.ButtonText):
        pairs = zip(palette.color(role).getRgb()[:3], window.getRgb()[:3], strict=True)  # type: ignore[index] # of four
        mixed = QColor(*(round(_DISABLED * a + (1 - _DISABLED) * b) for a, b in pairs))
        palette.setColor(QPalette.ColorGroup.Disabled, role, mixed)
    return palette
