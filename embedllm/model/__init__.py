"""The objects of the public API: a model, its embeddings, the tool loop (agent)."""
