"""GGUF files: header, metadata to config.json, tensor names, quantized types."""
