"""LoRA adapters, read from PEFT folders."""
