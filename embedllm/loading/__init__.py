"""load(): what a path or name means, which device takes the model, and opening it there."""
