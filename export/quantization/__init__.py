"""Calibrated quantization: GPTQ, AWQ, importance, mixed precision, KV scales."""
