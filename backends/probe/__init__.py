"""A tiny model with known answers (model/), run in a process of its own before a GPU is trusted."""
