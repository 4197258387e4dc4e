"""tune(): measures devices and thread counts for a model on this machine."""
