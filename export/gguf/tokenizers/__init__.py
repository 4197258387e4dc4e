"""The tokenizer in a GGUF file, written as tokenizer.json."""
