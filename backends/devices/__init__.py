"""Devices: which are there, what each supports, which one a model is given."""
