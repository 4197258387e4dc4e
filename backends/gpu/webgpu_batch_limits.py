"""What batches on WebGPU may take, for those that make them (webgpu_batch.py) and for estimates before a load."""

from embedllm.backends.driver import BatchBuffers

WEBGPU_BATCHES = BatchBuffers(rows=16, state_places=2, least_bytes=1 << 30, share=8)
