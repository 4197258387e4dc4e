"""A chat application for the desktop on top of embedllm, with PySide6. See README.md."""
