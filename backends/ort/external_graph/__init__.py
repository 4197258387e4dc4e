"""Decoder graphs of other exporters, run with their own inputs and KV layout."""
