"""Folders that other exporters wrote: detected, read, and checked for known defects."""
