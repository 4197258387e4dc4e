"""GPUs by ONNX Runtime: CUDA, WebGPU and DirectML, with KV caches bound to device buffers."""
