"""KV caches: sequences of a device, the prefix cache in memory and on disk, context shift."""
