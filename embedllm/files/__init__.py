"""Files that any package may use: atomic writes, JSON Lines, safetensors headers, image files, progress."""
