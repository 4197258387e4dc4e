"""Markdown at a terminal while it is generated: inline marks, word wrap, blocks."""
