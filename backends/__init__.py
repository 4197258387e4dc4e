"""One file per runtime; devices/selection.py chooses among them."""
