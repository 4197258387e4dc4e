"""Checkpoints: Hugging Face folders, sentence-transformers folders, fused experts, merged adapters."""
