"""One file per runtime; select.py chooses among them."""
