"""The slow NumPy decoder that every test compares with."""
