"""ONNX Runtime on the CPU, and what its other providers share."""
