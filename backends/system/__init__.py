"""What the machine has: processors, memory, builds and providers of ONNX Runtime, Vulkan drivers."""
