"""Speculative decoding: prompt lookup and draft models, used where they are measured to pay."""
