"""Weights to integers: quantization and the search for scales."""
