"""The ONNX graphs of an architecture."""
