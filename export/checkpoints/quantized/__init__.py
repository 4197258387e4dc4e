"""Checkpoints whose weights are quantized: which scheme, and how each is read without loss."""
