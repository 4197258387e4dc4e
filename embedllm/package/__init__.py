"""The folder on disk: its manifest, the architecture described as data, packed tensors, graph variants."""
