"""Models by their names on the Hugging Face hub: which files are meant, downloads, checks."""
